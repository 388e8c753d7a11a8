// The sources: every line of every file, with what is unfolded below it. Only the rows in sight are drawn.
function sourceTable(page) {
  const { data, $, element } = page;
  const ROW = 20, NEAR = 4, SHORT_FILE = 60;
  const main = $('main'), space = $('space'), panel = $('panel');
  let rows = [], here = -1, hereKey = '', offset = 0, byTotal = false, found = [], foundAt = -1, withAssembly = false;
  const open = new Set(), openFiles = new Map(), openGaps = new Set();

  // --- rows
  // -------------------------------------------------------------------------------------------------------------

  function layOut() {
    if (here >= 0) offset = here * ROW - main.scrollTop;
    rows = [];
    const wanted = page.wanted();
    data.files.forEach((file, number) => layOutFile(file, number, wanted));
    // A line that is folded away by one choice is there again with the next.
    here = rows.findIndex((row) => row.key === hereKey);
    space.style.height = rows.length * ROW + 'px';
    if (here >= 0) main.scrollTop = here * ROW - offset;
    // They have other numbers now.
    match();
    draw();
  }
  const isOpen = (file, number) => (openFiles.has(number) ? openFiles.get(number) : !file.library || file.hot);
  function layOutFile(file, number, wanted) {
    file.row = rows.length;
    file.hot = page.ofFile(number)[1] >= page.all() / 100;
    const unfolded = isOpen(file, number);
    rows.push({ kind: 'file', file, number, unfolded, key: 'file' + number });
    const matches = (text) => wanted && text.toLowerCase().includes(wanted);
    if (!unfolded && !(wanted && file.parts.some(([, texts]) => texts.some(matches)))) return;
    if (file.lines['0']) addLine(file, number, 0, '(line 0: the compiler names no line)', '');
    file.parts.forEach(([first, texts], part) => {
      const shown = new Uint8Array(texts.length);
      texts.forEach((text, at) => {
        const n = page.ofLine(number, first + at);
        const hot = n[1] >= page.all() / 500 || n[3] >= page.all() / 100;
        if (unfolded && (hot || texts.length <= SHORT_FILE && !file.library)) shown.fill(1, Math.max(0, at - NEAR), at + NEAR + 1);
        if (matches(text)) shown[at] = 1;
      });
      const begins = stringsOf(file)[part];
      let from = -1;
      const gap = (to) => {
        const key = 'gap' + number + ':' + (first + from);
        if (from >= 0) rows.push({ kind: 'gap', number, key, count: to - from, first: first + from });
        from = -1;
      };
      texts.forEach((text, at) => {
        if (from < 0 && !shown[at] && !openGaps.has(number + ':' + (first + at))) from = at;
        if (from >= 0 && !shown[at]) return;
        gap(at);
        addLine(file, number, first + at, text, begins[at]);
      });
      gap(texts.length);
    });
  }
  /** Of each line of each part the triple quotes that are open where it begins. */
  function stringsOf(file) {
    if (!file.strings) {
      file.strings = file.parts.map(([, texts]) => {
        let open = '';
        return texts.map((text) => {
          const begins = open;
          open = page.isPython(file) ? stringAfter(text, open) : '';
          return begins;
        });
      });
    }
    return file.strings;
  }
  function addLine(file, number, line, text, begins) {
    const entry = file.lines[line], key = number + ':' + line;
    rows.push({ kind: 'line', file, number, line, text, entry, key, begins });
    if (entry && open.has(key)) addCalls(entry.i, 1, key);
  }
  function addCalls(calls, depth, above) {
    (calls || []).forEach((call, at) => {
      const key = above + '/' + at;
      rows.push({ kind: 'call', call, depth, key });
      addCalls(call.i, depth + 1, key);
    });
  }

  function draw() {
    if (!main.clientHeight) return;
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
      const n = page.ofFile(row.number);
      line.append(element('span', '', (row.unfolded ? '▾ ' : '▸ ') + row.file.path), element('span', 'share', page.percent(n[1])));
      if (row.file.note) line.append(element('span', 'note', 'this file ' + row.file.note));
      return line;
    }
    if (row.kind === 'gap') {
      line.append(element('span', 'text', `${' '.repeat(37)}⋮ ${row.count} lines`));
      line.title = 'show these lines';
      return line;
    }
    drawNumbers(line, row.kind === 'call' ? (page.isFiltered() ? null : row.call.n) : row.entry && page.ofLine(row.number, row.line));
    if (row.kind === 'call') {
      line.append(element('span', 'at'), element('span', 'fold'));
      const call = row.call, file = call.p < 0 ? '' : ' ' + page.plain(data.files[call.p].path) + ':' + call.l;
      const path = call.l ? file : ' (line 0)', name = data.functions[call.f].name;
      const text = element('span', 'text', '    '.repeat(row.depth) + '↳ ' + page.short(name) + path + '  ');
      page.highlight(text, call.s, '');
      text.title = name;
      line.append(text);
      return line;
    }
    line.append(element('span', 'at', row.line));
    if (row.entry && row.entry.i) {
      const fold = element('button', 'fold', open.has(row.key) ? '▾' : '▸');
      fold.title = 'inlined calls';
      fold.tabIndex = -1;
      line.append(fold);
    } else line.append(element('span', 'fold'));
    if (foundAt >= 0 && found[foundAt] === at) line.classList.add('found');
    const text = element('span', 'text');
    if (page.isPython(row.file) && row.line) page.highlight(text, row.text, row.begins); else text.append(row.text);
    line.append(text);
    const chip = loops.chip(row.entry);
    if (chip) line.append(chip);
    return line;
  }
  function drawNumbers(line, n) {
    const heat = element('span', 'heat'), seen = n && n[2];
    const share = seen ? Math.min(1, (byTotal ? n[3] : n[1]) / page.all()) : 0;
    if (share > 0) heat.style.background = `rgba(var(--heat), ${(0.12 + 0.88 * Math.sqrt(share)).toFixed(3)})`;
    line.append(heat, page.share(seen ? n[1] : null, 'number'), page.share(seen ? n[3] : null, 'number'));
    line.append(element('span', 'number samples' + (seen && !n[0] ? ' zero' : ''), seen ? page.count(n[0]) : ''));
  }

  // --- moving
  // -----------------------------------------------------------------------------------------------------------

  function go(at, centre) {
    if (at < 0 || at >= rows.length) return;
    here = at;
    hereKey = rows[at].key;
    const top = at * ROW, view = main.clientHeight - ROW;
    if (centre || top < main.scrollTop || top > main.scrollTop + view - ROW * 2) main.scrollTop = Math.max(0, top - view / 3);
    draw();
    describe();
  }
  const rowOf = (file, line) => rows.findIndex((row) => row.kind === 'line' && row.number === file && row.line === line);
  function goToLine(file, line) {
    page.view('source');
    if (rowOf(file, line) < 0) {
      openFiles.set(file, true);
      layOut();
    }
    if (rowOf(file, line) < 0) {
      const gap = rows.find((row) => row.kind === 'gap' && row.number === file && row.first <= line && line < row.first + row.count);
      if (gap) openGap(gap);
    }
    go(rowOf(file, line), true);
  }
  function goToFunction(number) {
    const lines = data.functions[number].at;
    if (lines) goToLine(lines[0], lines[1]);
  }
  function hottest(step) {
    const limit = page.all() / 200;
    for (let at = here + step; at >= 0 && at < rows.length; at += step) {
      const row = rows[at];
      if (row.kind === 'line' && row.entry && page.ofLine(row.number, row.line)[byTotal ? 3 : 1] >= limit) return go(at, true);
    }
  }
  function fold(at) {
    const row = rows[at];
    if (!row) return;
    if (row.kind === 'file') { openFiles.set(row.number, !row.unfolded); return layOut(); }
    if (row.kind === 'gap') return openGap(row);
    if (row.kind !== 'line' || !row.entry || !row.entry.i) return;
    if (!open.delete(row.key)) open.add(row.key);
    layOut();
  }
  function openGap(row) {
    for (let line = row.first; line < row.first + row.count; line++) openGaps.add(row.number + ':' + line);
    layOut();
  }

  // --- facts about the line
  // ---------------------------------------------------------------------------------------------

  // Of callers, calls and instructions there are no numbers of a part of the recording.
  const ifAll = (weight) => (page.isFiltered() ? '' : page.percent(weight));
  const whose = (what) => (page.isFiltered() ? `${what} (shares are known of the whole recording only)` : what);
  const loops = loopViews(page, whose);
  function describe() {
    panel.replaceChildren();
    const row = rows[here];
    if (!row || row.kind !== 'line' || !row.entry) return;
    const entry = row.entry;
    panel.append(...loops.sections(entry));
    for (const number of entry.f) {
      const called = data.functions[number], section = element('section');
      const title = element('h3', '', whose(`${page.short(called.name)}: called by`));
      title.title = called.name;
      section.append(title);
      if (!called.callers) section.append(element('span', '', 'nothing that was seen'));
      for (const [caller, from, weight] of called.callers || []) {
        const place = from && from[1] ? ':' + from[1] : '';
        section.append(link(`${ifAll(weight)}  ${page.nameOf(caller)}${place}`, () => {
          if (place) goToLine(from[0], from[1]); else goToFunction(caller);
        }));
      }
      panel.append(section);
    }
    if (entry.c) {
      const section = element('section');
      section.append(element('h3', '', whose('this line calls')));
      for (const [callee, weight] of entry.c) {
        section.append(link(`${ifAll(weight)}  ${page.nameOf(callee)}`, () => goToFunction(callee)));
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
    const section = element('section', 'assembly'), title = element('button', 'link', whose('assembly of this line'));
    title.id = 'assembly';
    section.append(title);
    title.addEventListener('click', () => {
      withAssembly = !withAssembly;
      const shown = section.querySelector('pre');
      if (shown) shown.remove(); else showAssembly(section, entry);
    });
    if (withAssembly) requestAnimationFrame(() => showAssembly(section, entry));
    return section;
  }
  function showAssembly(section, entry) {
    const pre = element('pre');
    section.append(pre);
    if (typeof entry.a === 'string') return pre.append(entry.a);
    let hottest = null, most = 0;
    for (const [name, instructions] of entry.a) {
      pre.append(element('div', 'faint', name));
      for (const [address, weight, words] of instructions) {
        const text = `${(weight ? ifAll(weight) : '').padStart(8)}  ${address}  ${words}`;
        const line = element('div', '', text);
        if (weight > most) [hottest, most] = [line, weight];
        if (weight) line.style.background = `rgba(var(--heat), ${(0.5 * Math.sqrt(Math.min(1, weight / (page.data.weight || 1)))).toFixed(3)})`;
        pre.append(line);
      }
    }
    if (!hottest) return;
    hottest.classList.add('hottest');
    pre.scrollTop = hottest.offsetTop - pre.offsetTop - pre.clientHeight / 2;
  }

  // --- lists and search
  // ---------------------------------------------------------------------------------------------------

  function lists() {
    const side = $('functions');
    side.replaceChildren();
    for (const number of page.listed()) {
      const row = data.functions[number];
      side.append(item(page.ofFunction(number), page.short(row.name), row.name, () => goToFunction(number)));
      for (const [name, n] of row.compilations || []) {
        const more = item(page.isFiltered() ? [null, null, null, null] : n, page.short(name), whose(name), () => goToFunction(number));
        more.classList.add('more');
        side.append(more);
      }
    }
    $('files').replaceChildren(...data.files.map((file, number) => {
      return item([...page.ofFile(number), null, null], page.plain(file.path), file.path, () => {
        openFiles.set(number, true);
        layOut();
        go(file.row, true);
      });
    }));
  }
  function item(n, text, title, action) {
    const made = element('button', 'item');
    made.title = title;
    made.append(page.share(n[1]), page.share(n[3]), element('span', '', text));
    made.addEventListener('click', () => { action(); main.focus(); });
    return made;
  }
  function match() {
    const wanted = page.wanted();
    found = [];
    if (wanted) rows.forEach((row, at) => { if (row.kind === 'line' && row.text.toLowerCase().includes(wanted)) found.push(at); });
    foundAt = found.length ? Math.max(0, Math.min(foundAt, found.length - 1)) : -1;
    return wanted;
  }
  function find() {
    layOut();
    foundAt = -1;
    $('hits').textContent = page.wanted() ? (found.length ? found.length + ' lines' : 'none') : '';
    next(1);
  }
  function next(step) {
    if (!found.length) return draw();
    foundAt = (foundAt + step + found.length) % found.length;
    $('hits').textContent = `${foundAt + 1} of ${found.length}`;
    go(found[foundAt], true);
  }

  main.addEventListener('scroll', () => requestAnimationFrame(draw), { passive: true });
  main.addEventListener('click', (event) => {
    const row = event.target.closest('.row');
    if (!row) return;
    const at = Number(row.dataset.at), what = rows[at];
    if (event.target.closest('button.chip')) { loops.open(); return go(at, false); }
    if (what.kind === 'call' && what.call.p >= 0) return goToLine(what.call.p, what.call.l);
    if (what.kind !== 'line' || event.target.closest('button.fold')) fold(at);
    go(at, false);
  });
  function mode() { byTotal = !byTotal; $('mode').textContent = byTotal ? 'heat: total' : 'heat: self'; draw(); }
  $('mode').addEventListener('click', mode);
  const keys = {
    ArrowDown: () => go(here + 1), j: () => go(here + 1), ArrowUp: () => go(here - 1), k: () => go(here - 1),
    PageDown: () => go(Math.min(rows.length - 1, here + Math.floor(main.clientHeight / ROW))),
    PageUp: () => go(Math.max(0, here - Math.floor(main.clientHeight / ROW))),
    Home: () => go(0), End: () => go(rows.length - 1), n: () => hottest(1), p: () => hottest(-1), Enter: () => fold(here),
    ' ': () => fold(here), m: mode, a: () => { const button = $('assembly'); if (button) button.click(); },
  };
  return { show() { layOut(); lists(); describe(); }, draw, find, next, keys, goToLine, goToFunction };
}

// --- colours of Python
// ----------------------------------------------------------------------------------------------------

const WORDS = new Set(`False None True and as assert async await break class continue def del elif else except finally for from global if
import in is lambda nonlocal not or pass raise return try while with yield match case`.split(/\s+/));
const TOKEN = /("""|''')|(#.*)|((?:[rbfuRBFU]{0,2})(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?))|([A-Za-z_]\w*)|(\d[\w.]*)|@[\w.]+|\s+|./gu;

/** Which triple quotes are open after a line. */
function stringAfter(text, begins) {
  let open = begins, rest = text;
  while (rest) {
    if (open) {
      const end = rest.indexOf(open);
      if (end < 0) return open;
      [rest, open] = [rest.slice(end + 3), ''];
      continue;
    }
    if (!/"""|'''/.test(rest)) return '';
    TOKEN.lastIndex = 0;
    let token;
    while ((token = TOKEN.exec(rest)) && !token[1]);
    if (!token) return '';
    [open, rest] = [token[1], rest.slice(token.index + 3)];
  }
  return open;
}
function highlightPython(into, text, begins, element) {
  let rest = text, open = begins;
  while (rest) {
    if (open) {
      const end = rest.indexOf(open), length = end < 0 ? rest.length : end + 3;
      into.append(element('i', 'string', rest.slice(0, length)));
      [rest, open] = [rest.slice(length), ''];
      continue;
    }
    let length = 0;
    TOKEN.lastIndex = 0;
    for (const token of rest.matchAll(TOKEN)) {
      const [all, triple, comment, string, word, number] = token;
      length = token.index + all.length;
      if (triple) { into.append(element('i', 'string', all)); open = triple; break; }
      const kind = comment ? 'comment' : string ? 'string' : number ? 'digits' : word && WORDS.has(word) ? 'word' : all[0] === '@' ? 'word' : '';
      into.append(kind ? element('i', kind, all) : all);
    }
    if (!length) { into.append(rest); return; }
    rest = rest.slice(length);
  }
}
