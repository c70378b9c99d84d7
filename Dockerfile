# What the tests and the artifact need: Python, make, and g++ for the emulator. No GPU is needed.
#
#     docker build -t mirage_formal .
#     docker run --rm --network none mirage_formal artifact/run --kick-tires
#
# The digest is the one that Dockerfiles of several independent public projects have for this tag. No registry was asked
# where this file was written: `docker buildx imagetools inspect python:3.12.12-slim-bookworm` says what the tag is now.
FROM python:3.12.12-slim-bookworm@sha256:593bd06efe90efa80dc4eee3948be7c0fde4134606dd40d8dd8dbcade98e669c AS base
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /mirage_formal

FROM base
COPY . .
RUN make setup
CMD ["make", "help"]
