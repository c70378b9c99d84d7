"""Page section on a candidate's proof: summary sentences, every step by operator, lemmas, and closing identities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage_formal.report.model import Candidate
from mirage_formal.report.page.markup import Markup, details, element, join_contents, table
from mirage_formal.report.proofs.formulas import Formula, mathml
from mirage_formal.report.proofs.values import Lemma, Place, Proof, ProofPart, Step


def proof_section(one: Candidate, anchor: str) -> Markup:
    """Return the section on the proof of a candidate.

    Args:
        one: The candidate.
        anchor: Prefix of the ids of its steps.
    """
    if one.proof is None:
        if one.verdict != "equivalent":
            return element("p", None, "Nothing is proved: fingerprints agree, and that is all that is known.")
        if one.faults:
            return element("p", {"class": "bad"}, "No proof is shown: what does not hold is named above.")
        if one.remarks:
            return element("p", None, "Its proof is that of its parts; each part has its own below.")
        note = (
            f"The evidence names a proof of {one.steps} steps and {one.lemmas} lemmas. It was not replayed for this "
            "report, so its formulas are not shown; mirage-formal report --proofs N replays the first N."
        )
        return element("p", None, note)
    return join_contents(
        [_introduce_proof(one, one.proof), *(_part(part, f"{anchor}p{n}") for n, part in enumerate(one.proof.parts))]
    )


def summary_list(proof: Proof) -> Markup:
    """Return the sentences on how sums are split."""
    sentences = [sentence for part in proof.parts for sentence in part.summary]
    if not sentences:
        sentences = ["Program and candidate sum over nothing, or over the same dims at once."]
    return element("ul", {"class": "story"}, *(element("li", None, sentence) for sentence in sentences))


def _introduce_proof(one: Candidate, proof: Proof) -> Markup:
    lemmas = (
        f"{proof.lemmas_open} halves of the mixed-radix lemma are asked of z3 and cvc5 by check, not by this report"
    )
    rests = (
        "The checker's kernel replayed this proof while the report was made, and the formulas are those that it "
        f"computed. {lemmas}." if proof.lemmas_open else
        "The checker's kernel replayed this proof while the report was made; the formulas are those that it computed."
    )  # fmt: skip
    return join_contents(
        [summary_list(proof), element("p", {"class": "hint"}, rests), conditions(one.conditions, one.added)]
    )


def conditions(held: Sequence[str], added: Sequence[str]) -> Markup:
    """Return the list of side conditions of the equality."""
    if not held:
        return element("p", None, "It holds for all real inputs: there are no conditions.")
    items = [
        element("li", None, one, element("strong", None, " (the program does not need it)") if one in added else None)
        for one in held
    ]
    intro = element("p", None, "Equal over the reals for all inputs at which these hold:")
    region = {"class": "conditions", "tabindex": "0", "role": "group", "aria-label": "conditions"}
    return join_contents([intro, element("div", region, element("ul", None, *items))])


def _part(part: ProofPart, anchor: str) -> Markup:
    head = element("h5", None, f"The proof of what is {part.name}") if part.name else None
    if not part.shown:
        return join_contents([head, element("p", None, "Its formulas were not written out.")])
    ends = [
        element(
            "div",
            {"class": "identity"},
            element("p", None, f"Output part {number}: program, then candidate; {one.how}."),
            _formula(one.program),
            _formula(one.candidate),
        )
        for number, one in enumerate(part.identities)
    ]
    groups = [
        details(
            _group_title(places, steps),
            _group_links(places),
            _steps(steps, anchor),
            attributes={"class": "group", "data-nodes": " ".join(f"{one.graph}:{one.node}" for one in places)},
        )
        for places, steps in group_steps(part.steps)
    ]
    return join_contents(
        [
            head,
            element("h5", None, "What was compared at the end"),
            *(
                ends
                or [element("p", None, "Both graphs compute their outputs by the same operators on the same inputs.")]
            ),
            element("h5", None, f"{len(part.steps)} steps, by operator"),
            element("div", {"class": "groups"}, *groups),
            details(f"{len(part.lemmas)} lemmas: uses of laws that have a choice in them", _lemmas(part.lemmas)),
        ]
    )


def group_steps(steps: Iterable[Step]) -> list[tuple[tuple[Place, ...], list[Step]]]:
    """Group steps by the operators that compute them, in the order of their first steps."""
    found: dict[tuple[Place, ...], list[Step]] = {}
    for step in steps:
        found.setdefault(step.places, []).append(step)
    return list(found.items())


def _group_title(places: Sequence[Place], steps: Sequence[Step]) -> Markup:
    named = [f"{one.graph}: {one.label}" for one in places]
    laws = ", ".join(dict.fromkeys(step.law for step in steps if not step.minor)) or "elements moved, digits renamed"
    count = f" {len(steps)} step{'s' if len(steps) != 1 else ''}: {laws}"
    where = element("b", None, " and ".join(named) or "between operators")
    return join_contents([where, element("span", {"class": "soft"}, count)])


def _group_links(places: Sequence[Place]) -> Markup:
    """Return links to the nodes of the operators."""
    links = [
        element("a", {"href": "#candidate", "class": "goto", "data-goto": f"{one.graph}:{one.node}"},
                f"{one.label} in the {one.graph} ({one.node})")
        for one in places
        if one.node
    ]  # fmt: skip
    return element("p", {"class": "soft"}, "Shown as ", join_contents(links, ", "), ".") if links else Markup("")


def _steps(steps: Sequence[Step], anchor: str) -> Markup:
    rows = [
        element(
            "tr",
            {"id": f"{anchor}s{step.number}", "class": "minor" if step.minor else None},
            element("td", None, f"t{step.number}"),
            element("td", None, step.law),
            element("td", None, Markup(mathml(step.head, *_sides(step)))),
        )
        for step in steps
    ]
    heads = join_contents(
        element("th", {"scope": "col"}, one) for one in ("step", "law", "element = by the law = normal form")
    )
    made = element("table", {"class": "steps"}, element("thead", None, element("tr", None, heads)),
                   element("tbody", None, *rows))  # fmt: skip
    return element("div", {"class": "wide", "tabindex": "0", "role": "group", "aria-label": "steps"}, made)


def _sides(step: Step) -> tuple[Formula, ...]:
    return (step.right,) if step.left == step.right else (step.left, step.right)


def _lemmas(lemmas: Sequence[Lemma]) -> Markup:
    rows = [(str(one.number), one.law, Markup(mathml(one.left, one.right))) for one in lemmas]
    return table("Lemmas of the proof", ("lemma", "law", "both sides"), rows)


def _formula(formula: Formula) -> Markup:
    about: dict[str, object] = {"class": "formula", "tabindex": "0", "role": "group", "aria-label": "formula"}
    return element("div", about, Markup(mathml(formula).replace("<math>", '<math display="block">', 1)))
