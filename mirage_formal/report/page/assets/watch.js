"use strict";
(() => {
  const one = (selector) => document.querySelector(selector);
  const make = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const count = (value) => value === null ? "-" : value.toLocaleString("en");
  const us = (value) => value === null ? "-" : value.toFixed(2);
  const table = (caption, heads, rows) => {
    const wide = make("div", "", { class: "wide", tabindex: "0", role: "group", "aria-label": caption });
    const made = make("table");
    made.append(make("caption", caption));
    const head = made.createTHead().insertRow(), body = made.createTBody();
    for (const text of heads) head.append(make("th", text, { scope: "col" }));
    for (const cells of rows) { const row = body.insertRow(); for (const text of cells) row.append(make("td", text)); }
    wide.append(made);
    return wide;
  };
  const list = (title, lines) => {
    const items = make("ul", "", { class: "maps" });
    for (const line of lines) items.append(make("li", line));
    return [make("h3", title), items];
  };
  const figures = (run) => [
    run.name, run.place, run.state, run.units === null ? count(run.done) : `${count(run.done)} of ${count(run.units)}`, count(run.failed),
    count(run.states), count(run.pruned), count(run.candidates), count(run.accepted), us(run.best_us),
  ];
  const heads = ["name", "directory", "state", "units done", "failed", "states", "pruned", "candidates", "accepted", "best estimate µs"];
  const details = (run) => {
    const made = make("section", "", { "aria-label": run.name });
    made.append(make("h2", `${run.name} ${run.place === "." ? "" : run.place}`));
    if (run.front.length) made.append(table("Pareto front by number of kernels", ["kernels", "estimated µs", "candidate"], run.front.map(([kernels, time, name]) => [kernels, us(time), name])));
    if (run.measured.length) made.append(table("Measured candidates", ["candidate", "µs"], run.measured.map(([name, time]) => [name, us(time)])));
    if (run.newest.length) made.append(...list("Newest lines", run.newest));
    if (run.faults.length) made.append(...list("What cannot be read", run.faults));
    return made;
  };
  const status = one("#status"), place = one("#progress");
  let before = "";
  const poll = async () => {
    try {
      const answer = await fetch(`progress.json${location.search}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const text = await answer.text(), runs = JSON.parse(text);
      if (text !== before) {
        place.replaceChildren(table("What was recorded so far", heads, runs.map(figures)), ...runs.map(details));
        status.textContent = `${runs.length} ${runs.length === 1 ? "record" : "records"} of progress; the newest state is shown.`;
      }
      before = text;
    } catch (error) {
      status.textContent = "No answer: mirage-formal watch has ended. The last state is shown.";
      before = "";
    }
    document.documentElement.dataset.ready = "1";
    setTimeout(poll, 2000);
  };
  poll();
})();
