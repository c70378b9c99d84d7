"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);
  const make = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // --- theme ---------------------------------------------------------------------------------------------------------
  const theme = one("#theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const named = () => { theme.textContent = dark() ? "Light theme" : "Dark theme"; };
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; named(); });
  named();

  // --- details of candidates, which lie compressed in the page -------------------------------------------------------------
  const inflate = async (packed) => {
    const bytes = Uint8Array.from(atob(packed.textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).text();
  };
  const unpack = async (rank) => {
    const packed = document.getElementById(`packed-${rank}`);
    if (!packed) return null;
    const held = document.createElement("template");
    held.innerHTML = await inflate(packed);
    return held.content.firstElementChild;
  };
  const detail = one("#detail-body");
  const best = detail && one("article.candidate", detail);
  const first = best && best.cloneNode(true);
  const article = async (rank) => {
    const found = first && first.dataset.rank === String(rank) ? first.cloneNode(true) : await unpack(rank);
    if (found) enliven(found);
    return found;
  };
  let asked = first && first.dataset.rank;  // the last candidate that was asked for; another one may be unpacked by then
  const open = async (rank, focus = true) => {
    asked = String(rank);
    const found = await article(rank);
    if (!found || asked !== String(rank)) return;
    detail.replaceChildren(found);
    one("nav .code-link").setAttribute("href", `#${found.id}/code`);
    for (const row of all("#candidates-table tbody tr")) row.classList.toggle("current", row.dataset.rank === String(rank));
    if (focus) {
      focusHead(found);
      one("#candidate").scrollIntoView();
    }
  };
  const focusHead = (found) => {
    const head = one("h3", found);
    head.tabIndex = -1;
    head.focus();
  };

  // --- notes, copies and files -----------------------------------------------------------------------------------------
  const note = make("p", "", { role: "status", class: "note" });
  one("main").append(note);
  let silence;
  const say = (text) => {
    note.textContent = text;
    clearTimeout(silence);
    silence = setTimeout(() => { note.textContent = ""; }, 6000);
  };
  const copy = async (text, name) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // there is no clipboard here, or it is not allowed
      const back = document.activeElement;
      const area = make("textarea", "", { "aria-hidden": "true", class: "skip" });
      area.value = text;
      note.before(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      back.focus();
      if (!done) return say("The browser does not allow copying. Select the text instead.");
    }
    say(`Copied ${name}.`);
  };
  const download = (text, name) => {
    const link = make("a", "", { href: URL.createObjectURL(new Blob([text], { type: "application/octet-stream" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    say(`Made the file ${name} from this page.`);
  };
  const button = (text, label, act) => {
    const made = make("button", text, { type: "button", class: "small", "aria-label": label });
    made.addEventListener("click", act);
    return made;
  };
  const setUpCopies = (within) => {
    for (const code of all("code[data-copy]", within)) {
      const name = code.textContent.length > 40 ? `${code.textContent.slice(0, 40)}…` : code.textContent;
      code.after(button("Copy", `Copy ${name}`, () => copy(code.dataset.copy, name)));
    }
    for (const file of all("script[data-name]", within)) {
      const name = file.dataset.name, tools = make("div", "", { class: "tools" });
      tools.append(
        button(`Copy ${name}`, `Copy ${name}`, async () => copy(await inflate(file), name)),
        button(`Download ${name}`, `Download ${name}`, async () => download(await inflate(file), name)),
      );
      file.after(tools);
    }
    for (const pre of all("pre:not(.code)", within)) {
      const tools = make("div", "", { class: "tools" });
      tools.append(button("Copy", "Copy the text below", () => copy(pre.textContent, "the text")));
      pre.before(tools);
    }
  };

  // --- links to parts of the page ----------------------------------------------------------------------------------------
  // A name is an id, or the id of a drawing or a source with a slash and a node or a line of it.
  let current = "";
  const read = () => { try { return decodeURIComponent(location.hash.slice(1)); } catch { return location.hash.slice(1); } };
  const find = (name) => {
    const found = document.getElementById(name), cut = name.lastIndexOf("/");
    if (found || cut < 0) return found;
    const within = document.getElementById(name.slice(0, cut)), last = name.slice(cut + 1);
    return within && all("g.n, .l", within).find((item) => (item.dataset.node || item.dataset.line) === last);
  };
  const visit = (name) => { if (name) { current = name; location.hash = name; } };
  const show = async (name) => {
    current = name;
    const found = find(name) || (await openFor(name), find(name));
    if (current !== name || !name) return;
    if (!found) return say(`This page has no part with the name ${name.slice(0, 80)}.`);
    reveal(found);
    if (found.matches("article.candidate")) focusHead(found);
    else if (found.matches("g.n")) return select(found, found.closest(".graph"));
    else if (found.matches("details")) one("summary", found).focus();
    else if (found.matches("tr, .l")) mark(found);
    found.scrollIntoView(found.matches("tr, .l") ? { block: "center" } : true);
  };
  /** Open the candidate that has a part of this name; the best one for the page's own address. */
  const openFor = async (name) => {
    const links = table ? all("a.open", table) : [], owner = `#${name.split("/")[0]}`;
    const link = name ? links.find((item) => item.getAttribute("href") === owner) : links.find((item) => item.dataset.open === first.dataset.rank);
    const shown = [asked, one("article", detail || document)?.dataset.rank];
    if (link && shown.some((rank) => rank !== link.dataset.open)) await open(link.dataset.open, false);
  };

  // --- table of candidates -------------------------------------------------------------------------------------------
  const table = one("#candidates-table");
  const chosen = new Set();
  const sortBy = (head, numbers) => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of all("th", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = one("tbody", table);
    const value = (row) => row.cells[head.cellIndex].dataset.v;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (numbers && (x === "" || y === "")) return (x === "") - (y === "");
      const order = numbers ? Number(x) - Number(y) : x.localeCompare(y);
      return up ? order : -order;
    });
    body.append(...rows);
  };
  const filterRows = (words, verdict, status) => {
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || (verdict !== "" && row.dataset.verdict !== verdict);
      shown += !row.hidden;
    }
    status.textContent = `${shown} of ${table.tBodies[0].rows.length} shown`;
  };
  const setUpTable = () => {
    all("th[data-sort]", table).forEach((head) => {
      const button = make("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.addEventListener("click", () => sortBy(head, head.dataset.sort === "number"));
    });
    const bar = one("#filters");
    bar.className = "js-only";
    const inner = make("div", "", { class: "filters" });
    const label = make("label", "Filter ");
    const input = make("input", "", { type: "search", id: "filter", placeholder: "any words of a row" });
    label.append(input);
    const select = make("select", "", { id: "filter-verdict", "aria-label": "verdict" });
    select.append(make("option", "any verdict", { value: "" }));
    for (const verdict of new Set([...table.tBodies[0].rows].map((row) => row.dataset.verdict)))
      select.append(make("option", verdict, { value: verdict }));
    const status = make("span", "", { role: "status", class: "soft" });
    const compare = make("button", "Compare two", { type: "button", id: "compare-button", disabled: "" });
    const apply = () => filterRows(input.value.toLowerCase().split(/\s+/).filter(Boolean), select.value, status);
    input.addEventListener("input", apply);
    select.addEventListener("change", apply);
    compare.addEventListener("click", () => sideBySide([...chosen]));
    inner.append(label, select, compare, status);
    bar.replaceChildren(inner);
    for (const row of table.tBodies[0].rows) {
      const rank = row.dataset.rank;
      const box = make("input", "", { type: "checkbox", "aria-label": `compare candidate ${rank}` });
      box.addEventListener("change", () => {
        box.checked ? chosen.add(rank) : chosen.delete(rank);
        compare.disabled = chosen.size !== 2;
        compare.textContent = chosen.size === 2 ? `Compare ${[...chosen].join(" and ")}` : "Compare two";
      });
      one(".pick", row).append(box);
    }
    table.addEventListener("click", (event) => {
      const link = event.target.closest("a.open");
      if (!link) return;
      event.preventDefault();
      visit(link.getAttribute("href").slice(1));
      open(link.dataset.open);
    });
  };

  // --- two candidates side by side ---------------------------------------------------------------------------------------
  const lineDiff = (a, b) => {
    const long = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i--)
      for (let j = b.length - 1; j >= 0; j--)
        long[i][j] = a[i] === b[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1]);
    const out = [];
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { out.push([" ", a[i]]); i++; j++; }
      else if (j === b.length || (i < a.length && long[i + 1][j] >= long[i][j + 1])) out.push(["-", a[i++]]);
      else out.push(["+", b[j++]]);
    }
    return out;
  };
  const sideBySide = async (ranks) => {
    const place = one("#compare");
    const pair = await Promise.all(ranks.map(article));
    const cells = ranks.map((rank) => all("td[data-v]", one(`tr[data-rank="${rank}"]`, table)));
    const heads = all("th[data-sort]", table).map((head) => head.textContent);
    const facts = make("table", "", { id: "differences" });
    facts.append(make("caption", `Candidates ${ranks.join(" and ")}: what differs is marked`));
    const headRow = facts.createTHead().insertRow();
    for (const text of ["fact", ...ranks.map((rank) => `candidate ${rank}`)]) headRow.append(make("th", text, { scope: "col" }));
    const body = facts.createTBody();
    heads.forEach((head, at) => {
      const row = body.insertRow();
      row.append(make("th", head, { scope: "row" }));
      const differs = cells[0][at].textContent !== cells[1][at].textContent;
      for (const cell of cells) row.append(make("td", cell[at].textContent, differs ? { class: "differs" } : {}));
    });
    const texts = pair.map((found) => { const text = one("pre.text", found); return text ? text.textContent.split("\n") : []; });
    const diff = make("pre", "", { class: "diff", tabindex: "0" });
    for (const [sign, line] of lineDiff(texts[0], texts[1]))
      diff.append(make("span", `${sign} ${line}${sign === " " ? "\n" : ""}`, sign === " " ? {} : { class: sign === "+" ? "add" : "del" }));
    const columns = make("div", "", { class: "side" });
    pair.forEach((found) => { if (found) { found.setAttribute("aria-label", `${found.getAttribute("aria-label")}, side by side`); [found, ...all("[id]", found)].forEach((node) => node.removeAttribute("id")); columns.append(found); } });
    place.replaceChildren(make("h2", `Candidates ${ranks.join(" and ")} side by side`, { tabindex: "-1" }), facts, make("h3", "Their graphs as text, line by line"), diff, columns);
    place.hidden = false;
    one("h2", place).focus();
    place.scrollIntoView();
  };

  // --- graphs ---------------------------------------------------------------------------------------------------------
  const graphOf = (from, name) => {
    const near = from.closest("article, .judged");
    return (near && one(`.graph[data-graph="${name}"]`, near)) || one(`.graph[data-graph="${name}"]`);
  };
  const reveal = (node) => { for (let at = node; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; };
  const goTo = (from, name, id) => {
    const graph = graphOf(from, name);
    if (!graph) return;
    const node = all("g.n", graph).find((item) => item.dataset.node === id);
    if (!node) return;
    visit(nameOf(node, graph));
    select(node, graph);
  };
  const mark = (item) => {
    for (const other of all(".here")) other.classList.remove("here");
    item.classList.add("here");
  };
  const select = (node, graph) => {
    reveal(node);
    mark(node);
    enter(node, graph);
    node.focus();
    node.scrollIntoView({ block: "center", inline: "center" });
  };
  /** The name of a node in the address; a candidate that is shown beside another one has none. */
  const nameOf = (node, graph) => graph.id && node.dataset.node ? `${graph.id}/${node.dataset.node}` : "";
  const steps = (from, name, id) => {
    const within = from.closest("article, .judged") || one("#detail-body") || document;
    const wanted = `${name}:${id}`;
    return all("details.group", within).filter((group) => group.dataset.nodes.split(" ").includes(wanted));
  };
  const codeOf = (from, name, id) => {
    const within = from.closest("article");
    const wanted = `${name}:${id}`;
    return within ? all(".code .of a.goto", within).filter((link) => link.dataset.goto === wanted || link.dataset.goto.startsWith(`${wanted}.`)) : [];
  };
  /** Mark the lines of a source, its PTX and its SASS that belong together, and show the first of each text. */
  const markSame = (line) => {
    for (const other of all(".l.same")) other.classList.remove("same");
    const number = line.dataset.from || line.dataset.line, own = line.closest("pre");
    if (number === "0") return;
    for (const pre of all("pre.code", line.closest(".listings"))) {
      const found = all(".l", pre).filter((item) => (item.dataset.from || item.dataset.line) === number);
      for (const item of found) item.classList.add("same");
      if (found.length && pre !== own) pre.scrollTop = found[0].offsetTop - pre.clientHeight / 3;
    }
  };
  const choose = (node, graph) => {
    const about = one("output.about", graph);
    const title = one("title", node);
    about.replaceChildren(document.createTextNode(title ? title.textContent : ""), document.createElement("br"));
    if (!node.dataset.node) return;
    const inside = all("details.level", graph).find((item) => item.dataset.opens === node.dataset.node);
    if (inside) {
      const button = make("button", "Open what is inside", { type: "button" });
      button.addEventListener("click", () => { reveal(inside); one("summary", inside).focus(); inside.scrollIntoView(); });
      about.append(button);
    }
    const sources = new Map();
    for (const link of codeOf(graph, graph.dataset.graph, node.dataset.node)) {
      const source = link.closest("details.source");
      if (!sources.has(source)) sources.set(source, link);
    }
    for (const [source, line] of sources) {
      const name = sources.size > 1 ? `in ${one("summary", source).textContent.split(":")[0]}` : "of code";
      const button = make("button", `Show its lines ${name}`, { type: "button", class: "to-code" });
      button.addEventListener("click", () => { reveal(line); line.focus(); line.scrollIntoView({ block: "center" }); });
      about.append(button);
    }
    const found = steps(graph, graph.dataset.graph, node.dataset.node);
    if (found.length) {
      const button = make("button", "Show its steps of the proof", { type: "button", class: "to-proof" });
      button.addEventListener("click", () => {
        for (const group of found) reveal(group);
        one("summary", found[0]).focus();
        found[0].scrollIntoView({ block: "center" });
      });
      about.append(button);
    }
  };
  const setUpGraph = (graph) => {
    for (const svg of all("svg.mu", graph)) {
      svg.setAttribute("role", "group");
      const items = [...all("g.n", svg), ...all("g.e", svg).filter((edge) => edge.dataset.maps !== "[]")];
      items.forEach((item, at) => {
        item.setAttribute("role", "button");
        item.setAttribute("aria-label", one("title", item).textContent);
        item.setAttribute("tabindex", at ? "-1" : "0");
      });
      const move = (from, to) => {
        if (!to) return;
        from.setAttribute("tabindex", "-1");
        to.setAttribute("tabindex", "0");
        to.focus();
      };
      svg.addEventListener("keydown", (event) => {
        const at = items.indexOf(event.target.closest("g.n, g.e"));
        if (at < 0) return;
        const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: items.length - 1 }[event.key];
        if (to !== undefined) { event.preventDefault(); move(items[at], items[to]); }
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); visit(nameOf(items[at], graph)); enter(items[at], graph); }
      });
      svg.addEventListener("focusin", (event) => { const item = event.target.closest("g.n, g.e"); if (item) choose(item, graph); });
      svg.addEventListener("click", (event) => { const item = event.target.closest("g.n, g.e"); if (item) { visit(nameOf(item, graph)); item.focus(); enter(item, graph); } });
    }
    for (const slabs of all(".slabs", graph)) setUpSlabs(slabs);
  };
  const enter = (item, graph) => {
    choose(item, graph);
    const inside = item.dataset.node && all("details.level", graph).find((level) => level.dataset.opens === item.dataset.node);
    if (inside) { reveal(inside); inside.scrollIntoView({ block: "nearest" }); }
  };

  // --- what a block and an iteration read and write ------------------------------------------------------------------
  const NS = "http://www.w3.org/2000/svg";
  const rect = (kind, x, y, w, h) => {
    const made = document.createElementNS(NS, "rect");
    for (const [key, value] of Object.entries({ class: kind, x, y, width: Math.max(w, 1.5), height: Math.max(h, 1.5) })) made.setAttribute(key, value);
    return made;
  };
  const ranges = (tensor, extents, at) => {
    const start = tensor.shape.map(() => 0), length = [...tensor.shape];
    tensor.cut.forEach((dim, axis) => {
      if (dim === null) return;
      length[dim] /= extents[axis];
      start[dim] += at[axis] * length[dim];
    });
    return start.map((from, dim) => [from, length[dim]]);
  };
  const setUpSlabs = (place) => {
    if (place.dataset.ready) return;
    place.dataset.ready = "1";
    const given = JSON.parse(place.dataset.slabs);
    const extents = [...given.grid, given.loop];
    const at = [0, 0, 0, 0];
    const controls = one(".controls", place), sheets = one(".sheets", place), said = one(".said", place);
    const sliders = [];
    const draw = () => {
      sheets.replaceChildren();
      const words = [];
      for (const tensor of given.tensors) {
        const slab = ranges({ ...tensor, cut: [...tensor.cut.slice(0, 3), null] }, extents, at), tile = ranges(tensor, extents, at);
        const rank = tensor.shape.length;
        const cut = [...new Set(tensor.cut.filter((dim) => dim !== null))].sort((a, b) => a - b);
        const drawn = cut.length >= 2 ? cut.slice(-2) : rank >= 2 ? (cut.length && cut[0] < rank - 2 ? [cut[0], rank - 1] : [rank - 2, rank - 1]) : [0];
        const [down, across] = drawn.length === 2 ? drawn : [null, drawn[0]];
        const width = 170, height = down === null ? 22 : 110;
        const svg = document.createElementNS(NS, "svg");
        svg.setAttribute("width", width + 2);
        svg.setAttribute("height", height + 2);
        svg.setAttribute("role", "img");
        svg.setAttribute("aria-label", `${tensor.name}: the part that the block ${tensor.writes ? "writes" : "reads"}`);
        if (tensor.writes) svg.setAttribute("class", "writes");
        const box = (kind, parts) => {
          const [x, w] = parts[across], [y, h] = down === null ? [0, 1] : parts[down];
          const high = down === null ? 1 : tensor.shape[down];
          svg.append(rect(kind, 1 + (x / tensor.shape[across]) * width, 1 + (y / high) * height, (w / tensor.shape[across]) * width, (h / high) * height));
        };
        box("all", tensor.shape.map((extent) => [0, extent]));
        box("slab", slab);
        box("tile", tile);
        const figure = make("figure");
        const shown = down === null ? `dim ${across}` : `dim ${down} down, dim ${across} across`;
        figure.append(svg, make("figcaption", `${tensor.name}: ${shown}`));
        sheets.append(figure);
        const range = ([from, count]) => (count === 1 ? `${from}` : `${from}..${from + count - 1}`);
        words.push(`${tensor.writes ? "writes" : "reads"} ${tensor.name}[${tile.map(range).join(", ")}]`);
      }
      const where = `Block (${at.slice(0, 3).join(", ")})${given.loop > 1 ? `, iteration ${at[3]}` : ""}`;
      said.textContent = `${where} ${words.join("; ")}.`;
    };
    ["block x", "block y", "block z", "iteration"].forEach((name, axis) => {
      if (extents[axis] < 2) return;
      const label = make("label", `${name} `);
      const input = make("input", "", { type: "range", min: 0, max: extents[axis] - 1, value: 0 });
      const value = make("output", "0");
      input.addEventListener("input", () => { at[axis] = Number(input.value); value.textContent = input.value; draw(); });
      label.append(input, value);
      controls.append(label);
      sliders.push([input, axis, value]);
    });
    if (sliders.length) {
      const next = make("button", "Next step", { type: "button" });
      next.addEventListener("click", () => {
        for (const [input, axis, value] of [...sliders].reverse()) {
          at[axis] = (at[axis] + 1) % extents[axis];
          input.value = at[axis];
          value.textContent = at[axis];
          if (at[axis]) break;
        }
        draw();
      });
      controls.append(next);
    }
    draw();
  };

  // --- the decisions of the search, one by one -------------------------------------------------------------------------
  const setUpDecisions = (place) => {
    const items = all("li", place), said = make("output", "", { class: "decision", "aria-live": "polite" });
    const bar = make("div", "", { class: "stepper" }), count = make("span", `${items.length} decisions`, { class: "soft" });
    const back = button("Back", "The decision before", () => go(at - 1)), next = button("Step through the search", "The next decision of the search", () => go(at + 1));
    const end = button("Close", "End stepping through the decisions", () => go(-1));
    let at = -1;
    const go = (to) => {
      at = to;
      const on = at >= 0;
      place.classList.toggle("on", on);
      back.disabled = at < 1;
      next.disabled = at === items.length - 1;
      next.textContent = on ? "Next" : "Step through the search";
      end.hidden = !on;
      count.textContent = on ? `${at + 1} of ${items.length}` : `${items.length} decisions`;
      said.replaceChildren(...(on ? [...items[at].childNodes].map((node) => node.cloneNode(true)) : []));
      for (const other of all(".here")) other.classList.remove("here");
      if (!on) return next.focus();
      const graph = graphOf(place, "candidate"), id = items[at].dataset.at;
      const node = id && all("g.n", graph).find((item) => item.dataset.node === id);
      if (next.disabled) back.focus();
      if (!node) return place.scrollIntoView({ block: "nearest" });
      reveal(node);
      mark(node);
      choose(node, graph);
      node.scrollIntoView({ block: "center", inline: "center" });
    };
    back.disabled = end.hidden = true;
    bar.append(back, next, end, count);
    place.prepend(bar, said);
  };

  // --- everything together -------------------------------------------------------------------------------------------
  const enliven = (within) => {
    for (const graph of all(".graph", within)) setUpGraph(graph);
    for (const place of all(".decisions", within)) setUpDecisions(place);
    setUpCopies(within);
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.goto");
    if (link) {
      event.preventDefault();
      const [name, id] = link.dataset.goto.split(":");
      goTo(link, name, id);
    }
    const line = !link && event.target.closest(".listings .l");
    if (line) markSame(line);
    const dot = event.target.closest("circle[data-candidate]");
    if (dot) one(`a.open[data-open="${dot.dataset.candidate}"]`).click();
    const summary = event.target.closest("summary"), place = summary && summary.parentElement;
    if (place && !place.open) visit(place.dataset.opens ? nameOf({ dataset: { node: place.dataset.opens } }, place.closest(".graph")) : place.id);
  });
  addEventListener("hashchange", () => { const name = read(); if (name !== current) show(name); });
  addEventListener("beforeprint", () => { for (const item of all("article details")) item.open = true; });
  if (table) setUpTable();
  enliven(document);
  if (location.hash) show(read()).finally(() => { root.dataset.ready = "1"; });
  else root.dataset.ready = "1";
})();
