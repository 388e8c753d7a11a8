'use strict';
// Draws the table. Everything from the recording reaches the page as text nodes (textContent), never as markup.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const $ = (id) => document.getElementById(id);
  const ROW = 20;
  const main = $('main'), space = $('space'), panel = $('panel'), search = $('search');
  let thread = -1, byTotal = false, rows = [], here = -1, found = [], foundAt = -1;
  const open = new Set();

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const whole = () => (thread < 0 ? data.weight : data.threads[thread].weight) || 1;
  const percent = (weight) => (weight / whole() * 100).toFixed(1) + ' %';
  const count = (number) => number.toLocaleString('en');
  const percentAll = (weight) => (weight / (data.weight || 1) * 100).toFixed(1) + ' %';
  // Of callers, calls and instructions there are no numbers of a thread, and so none beside those of a thread.
  const percentIfAll = (weight) => (thread < 0 ? percentAll(weight) : '');
  const whose = (what) => (thread < 0 ? what : `${what} (shares are known of all threads only)`);
  const nothing = [0, 0, 0, 0];
  // Of a line or a function: own samples, own weight, total samples, total weight.
  const shares = (row) => (thread < 0 ? row.n : (row.t && row.t[thread]) || nothing);
  const plain = (path) => path.slice(path.lastIndexOf('/') + 1);

  // --- rows: every line of every file, with what is unfolded below it -------------------------------------------------

  function layOut() {
    rows = [];
    data.files.forEach((file, number) => {
      file.row = rows.length;
      rows.push({ kind: 'file', file });
      if (file.lines['0']) addLine(file, number, 0, '(code of which the compiler says that it is of no line)');
      file.parts.forEach(([first, texts], part) => {
        if (part || first > 1) rows.push({ kind: 'gap' });
        texts.forEach((text, at) => addLine(file, number, first + at, text));
      });
    });
    space.style.height = rows.length * ROW + 'px';
    // They have other numbers now.
    match();
    draw();
  }
  function addLine(file, number, line, text) {
    const entry = file.lines[line];
    const key = number + ':' + line;
    rows.push({ kind: 'line', file, number, line, text, entry, key });
    if (entry && open.has(key)) addCalls(entry.i, 1);
  }
  function addCalls(calls, depth) {
    for (const call of calls || []) {
      rows.push({ kind: 'call', call, depth });
      addCalls(call.i, depth + 1);
    }
  }

  function draw() {
    const first = Math.max(0, Math.floor(main.scrollTop / ROW) - 20);
    const last = Math.min(rows.length, first + Math.ceil(main.clientHeight / ROW) + 40);
    const made = document.createDocumentFragment();
    for (let at = first; at < last; at++) made.append(drawRow(rows[at], at));
    space.replaceChildren(made);
  }
  function drawRow(row, at) {
    const line = element('div', 'row ' + row.kind);
    line.style.top = at * ROW + 'px';
    line.dataset.at = at;
    if (at === here) line.classList.add('here');
    if (row.kind === 'file') {
      line.append(row.file.path);
      if (row.file.note) line.append(element('span', 'note', 'this file ' + row.file.note));
      return line;
    }
    if (row.kind === 'gap') { line.append(element('span', 'source', ' '.repeat(40) + '⋮')); return line; }
    const n = row.kind === 'call' ? (thread < 0 ? row.call.n : null) : row.entry && shares(row.entry);
    drawNumbers(line, n);
    if (row.kind === 'call') {
      line.append(element('span', 'at'), element('span', 'fold'));
      const call = row.call, file = call.p < 0 ? '' : ' ' + plain(data.files[call.p].path) + ':' + call.l;
      const path = call.l ? file : ' (code of no line)';
      line.append(element('span', 'source', '    '.repeat(row.depth) + '↳ ' + data.functions[call.f].name + path + '  ' + call.s));
      return line;
    }
    line.append(element('span', 'at', row.line ? row.line : '0'));
    if (row.entry && row.entry.i) {
      const fold = element('button', 'fold', open.has(row.key) ? '▾' : '▸');
      fold.title = 'inlined calls';
      fold.tabIndex = -1;
      line.append(fold);
    } else line.append(element('span', 'fold'));
    if (foundAt >= 0 && found[foundAt] === at) line.classList.add('found');
    line.append(element('span', 'source', row.text));
    return line;
  }
  function drawNumbers(line, n) {
    const heat = element('span', 'heat');
    if (n) {
      const share = Math.min(1, (byTotal ? n[3] : n[1]) / whole());
      if (share > 0) heat.style.background = `rgba(var(--heat), ${(0.12 + 0.88 * Math.sqrt(share)).toFixed(3)})`;
    }
    line.append(heat);
    const seen = n && n[2];
    line.append(element('span', 'number', seen ? percent(n[1]) : ''), element('span', 'number', seen ? percent(n[3]) : ''),
      element('span', 'number samples', seen ? count(n[0]) : ''));
  }

  // --- moving -----------------------------------------------------------------------------------------------------------

  function go(at, centre) {
    if (at < 0 || at >= rows.length) return;
    here = at;
    const top = at * ROW, view = main.clientHeight - ROW;
    if (centre || top < main.scrollTop || top > main.scrollTop + view - ROW * 2) main.scrollTop = Math.max(0, top - view / 3);
    draw();
    describe();
  }
  const rowOf = (file, line) => rows.findIndex((row) => row.kind === 'line' && row.number === file && row.line === line);
  function goToFunction(number) {
    const lines = data.functions[number].at;
    if (lines) go(rowOf(lines[0], lines[1]), true);
  }
  function hottest(step) {
    const limit = whole() / 200;
    for (let at = here + step; at >= 0 && at < rows.length; at += step) {
      const row = rows[at];
      if (row.kind === 'line' && row.entry && shares(row.entry)[byTotal ? 3 : 1] >= limit) return go(at, true);
    }
  }
  function fold(at) {
    const row = rows[at];
    if (!row || row.kind !== 'line' || !row.entry || !row.entry.i) return;
    if (!open.delete(row.key)) open.add(row.key);
    layOut();
  }

  // --- what is known about the line -------------------------------------------------------------------------------------

  function describe() {
    panel.replaceChildren();
    const row = rows[here];
    if (!row || row.kind !== 'line' || !row.entry) return;
    const entry = row.entry;
    for (const number of entry.f) {
      const called = data.functions[number];
      const section = element('section');
      section.append(element('h3', '', whose(`${called.name}: called by`)));
      if (!called.callers.length) section.append(element('span', '', 'nothing that was seen'));
      for (const [caller, from, weight] of called.callers) {
        const place = from && from[1] ? ':' + from[1] : '';
        section.append(link(`${percentIfAll(weight)}  ${data.functions[caller].name}${place}`, () => {
          if (place) go(rowOf(from[0], from[1]), true); else goToFunction(caller);
        }));
      }
      panel.append(section);
    }
    if (entry.c) {
      const section = element('section');
      section.append(element('h3', '', whose('this line calls')));
      for (const [callee, weight] of entry.c) {
        section.append(link(`${percentIfAll(weight)}  ${data.functions[callee].name}`, () => goToFunction(callee)));
      }
      panel.append(section);
    }
    if (entry.a !== undefined) panel.append(assembly(entry));
  }
  function link(text, action) {
    const made = element('button', 'link', text);
    made.addEventListener('click', action);
    return made;
  }
  function assembly(entry) {
    const section = element('section');
    const title = element('button', 'link', whose('assembly of this line'));
    title.id = 'assembly';
    section.append(title);
    title.addEventListener('click', () => {
      const shown = section.querySelector('pre');
      if (shown) return shown.remove();
      const text = typeof entry.a === 'string' ? entry.a : entry.a.map(([name, instructions]) => name + '\n' +
        instructions.map(([address, weight, words]) => `${(weight ? percentIfAll(weight) : '').padStart(8)}  ${address}  ${words}`).join('\n')).join('\n\n');
      section.append(element('pre', '', text));
    });
    return section;
  }

  // --- lists, search, choices -------------------------------------------------------------------------------------------

  function lists() {
    const side = $('functions');
    side.replaceChildren();
    let listed = data.functions.map((row, number) => [row, number]).filter(([row]) => row.listed);
    if (thread >= 0) listed = listed.filter(([row]) => shares(row)[2]).sort((a, b) => shares(b[0])[1] - shares(a[0])[1]);
    for (const [row, number] of listed) {
      side.append(item(shares(row), row.name, row.name, () => goToFunction(number)));
      for (const [name, n] of row.compilations) {
        const more = item(thread < 0 ? n : [null, null, null, null], name, whose(name), () => goToFunction(number));
        more.classList.add('more');
        side.append(more);
      }
    }
    const files = $('files');
    files.replaceChildren();
    for (const file of data.files) files.append(item(ofFile(file), plain(file.path), file.path, () => go(file.row, true)));
  }
  function ofFile(file) {
    if (thread < 0) return file.n;
    const own = [0, 0];
    for (const line of Object.values(file.lines)) add(own, shares(line));
    return [...own, null, null];
  }
  function add(sum, n) { sum[0] += n[0]; sum[1] += n[1]; }
  function item(n, text, title, action) {
    const made = element('button', 'item'), part = (weight) => element('span', '', weight === null ? '' : percent(weight));
    made.title = title;
    made.append(part(n[1]), part(n[3]), element('span', '', text));
    made.addEventListener('click', () => { action(); main.focus(); });
    return made;
  }
  function match() {
    const wanted = search.value.toLowerCase();
    found = [];
    if (wanted) rows.forEach((row, at) => { if (row.kind === 'line' && row.text.toLowerCase().includes(wanted)) found.push(at); });
    return wanted;
  }
  function find() {
    const wanted = match();
    foundAt = -1;
    $('hits').textContent = wanted ? (found.length ? found.length + ' lines' : 'none') : '';
    next(1);
  }
  function next(step) {
    if (!found.length) return draw();
    foundAt = (foundAt + step + found.length) % found.length;
    $('hits').textContent = `${foundAt + 1} of ${found.length}`;
    go(found[foundAt], true);
  }
  function theme(dark) { document.documentElement.classList.toggle('dark', dark); }

  function head() {
    const parts = headOf().map(([what, n]) => {
      const part = element('span');
      part.append(element('b', '', n[1] === null ? count(n[0]) : percent(n[1])), ' ' + what);
      part.title = count(n[0]) + ' samples';
      return part;
    });
    $('head').replaceChildren(...parts);
  }
  function headOf() {
    if (thread < 0) return data.head;
    const { all, compiled } = data.threads[thread], zero = [0, 0], lines = [0, 0];
    for (const file of data.files) {
      add(lines, ofFile(file));
      if (file.lines['0']) add(zero, shares(file.lines['0']));
    }
    const less = (a, b) => [a[0] - b[0], a[1] - b[1]];
    return [['in compiled code', compiled], ['of it without a line table', less(compiled, lines)], ['of it line 0', zero],
      ['outside', less(all, compiled)]];
  }
  function facts() {
    document.title = 'jitlisten: ' + data.title;
    $('title').textContent = data.title;
    $('title').title = data.command;
    for (const note of data.notes) $('notes').append(element('li', '', note));
    const choice = $('thread');
    choice.append(new Option('all threads', '-1'));
    data.threads.map((row, number) => [row, number]).sort((a, b) => b[0].weight - a[0].weight).forEach(([row, number]) => {
      choice.append(new Option(`${row.name}: ${percentAll(row.weight)}`, number));
    });
    choice.addEventListener('change', () => { thread = Number(choice.value); show(); main.focus(); });
  }

  main.addEventListener('scroll', () => requestAnimationFrame(draw), { passive: true });
  window.addEventListener('resize', draw);
  main.addEventListener('click', (event) => {
    const row = event.target.closest('.row');
    if (!row) return;
    const at = Number(row.dataset.at);
    if (event.target.closest('button.fold')) fold(at);
    if (rows[at] && rows[at].kind === 'call' && rows[at].call.p >= 0) return go(rowOf(rows[at].call.p, rows[at].call.l), true);
    go(at, false);
  });
  search.addEventListener('input', find);
  search.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') next(event.shiftKey ? -1 : 1);
    if (event.key === 'Escape') main.focus();
  });
  $('mode').addEventListener('click', () => mode());
  $('theme').addEventListener('click', () => theme(!document.documentElement.classList.contains('dark')));
  $('keys').addEventListener('click', () => $('help').showModal());
  function mode() { byTotal = !byTotal; $('mode').textContent = byTotal ? 'heat: total' : 'heat: self'; draw(); }
  const KEYS = {
    ArrowDown: () => go(here + 1), j: () => go(here + 1), ArrowUp: () => go(here - 1), k: () => go(here - 1),
    PageDown: () => go(Math.min(rows.length - 1, here + Math.floor(main.clientHeight / ROW))),
    PageUp: () => go(Math.max(0, here - Math.floor(main.clientHeight / ROW))),
    Home: () => go(0), End: () => go(rows.length - 1), n: () => hottest(1), p: () => hottest(-1), Enter: () => fold(here),
    ' ': () => fold(here), m: mode, d: () => $('theme').click(), '/': () => { search.focus(); search.select(); },
    a: () => { const button = $('assembly'); if (button) button.click(); }, '?': () => $('help').showModal(),
  };
  document.addEventListener('keydown', (event) => {
    const inField = /^(INPUT|SELECT)$/.test(event.target.tagName) || $('help').open;
    if (inField || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    if (event.target.tagName === 'BUTTON' && (event.key === 'Enter' || event.key === ' ')) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  // Everything that has numbers.
  function show() { head(); lists(); draw(); describe(); }

  theme(window.matchMedia('(prefers-color-scheme: dark)').matches);
  facts();
  layOut();
  show();
  const first = data.functions.findIndex((row) => row.listed && row.at);
  if (first >= 0) goToFunction(first);
  main.focus();
})();
