// Source view: every line of every file, with the unfolded calls below it. Only visible rows are drawn.
function sourceTable(page) {
  const { data, $, element } = page;
  const ROW_PX = 20, CONTEXT_LINES = 4, MAX_SHORT_FILE_LINES = 60;
  const main = $('main'), space = $('space'), panel = $('panel');
  let rows = [], currentIndex = -1, currentKey = '', offset = 0, heatByTotal = false, hits = [], hitIndex = -1, showsAssembly = false;
  const openLines = new Set(), openFiles = new Map(), openGaps = new Set();

  // Rows.

  function layOut() {
    if (currentIndex >= 0) offset = currentIndex * ROW_PX - main.scrollTop;
    rows = [];
    const wanted = page.wanted();
    data.files.forEach((file, number) => layOutFile(file, number, wanted));
    // A line that this selection hides becomes the current row again when it reappears.
    currentIndex = rows.findIndex((row) => row.key === currentKey);
    space.style.height = rows.length * ROW_PX + 'px';
    if (currentIndex >= 0) main.scrollTop = currentIndex * ROW_PX - offset;
    // The row indices have changed.
    findHits();
    draw();
  }
  const isOpen = (file, number) => (openFiles.has(number) ? openFiles.get(number) : !file.library || file.hot);
  function layOutFile(file, number, wanted) {
    file.row = rows.length;
    file.hot = page.fileShares(number)[1] >= page.all() / 100;
    const unfolded = isOpen(file, number);
    rows.push({ kind: 'file', file, number, unfolded, key: 'file' + number });
    const matches = (text) => wanted && text.toLowerCase().includes(wanted);
    if (!unfolded && !(wanted && file.parts.some(([, texts]) => texts.some(matches)))) return;
    if (file.lines['0']) addLine(file, number, 0, '(line 0: the compiler names no line)', '');
    file.parts.forEach(([first, texts], part) => {
      const shown = new Uint8Array(texts.length);
      texts.forEach((text, index) => {
        const n = page.lineShares(number, first + index);
        const hot = n[1] >= page.all() / 500 || n[3] >= page.all() / 100;
        if (unfolded && (hot || texts.length <= MAX_SHORT_FILE_LINES && !file.library)) shown.fill(1, Math.max(0, index - CONTEXT_LINES), index + CONTEXT_LINES + 1);
        if (matches(text)) shown[index] = 1;
      });
      const openQuotes = stringsOf(file)[part];
      let gapStart = -1;
      const addGap = (gapEnd) => {
        const key = 'gap' + number + ':' + (first + gapStart);
        if (gapStart >= 0) rows.push({ kind: 'gap', number, key, count: gapEnd - gapStart, first: first + gapStart });
        gapStart = -1;
      };
      texts.forEach((text, index) => {
        if (gapStart < 0 && !shown[index] && !openGaps.has(number + ':' + (first + index))) gapStart = index;
        if (gapStart >= 0 && !shown[index]) return;
        addGap(index);
        addLine(file, number, first + index, text, openQuotes[index]);
      });
      addGap(texts.length);
    });
  }
  /** Returns for each line of each part the triple quote that is open at its start, or an empty string. */
  function stringsOf(file) {
    if (!file.strings) {
      file.strings = file.parts.map(([, texts]) => {
        let openQuoteAfter = '';
        return texts.map((text) => {
          const openQuote = openQuoteAfter;
          openQuoteAfter = page.isPython(file) ? stringAfter(text, openQuoteAfter) : '';
          return openQuote;
        });
      });
    }
    return file.strings;
  }
  function addLine(file, number, line, text, openQuote) {
    const entry = file.lines[line], key = number + ':' + line;
    rows.push({ kind: 'line', file, number, line, text, entry, key, openQuote });
    if (entry && openLines.has(key)) addCalls(entry.i, 1, key);
  }
  function addCalls(calls, depth, parentKey) {
    (calls || []).forEach((call, index) => {
      const key = parentKey + '/' + index;
      rows.push({ kind: 'call', call, depth, key });
      addCalls(call.i, depth + 1, key);
    });
  }

  function draw() {
    if (!main.clientHeight) return;
    const first = Math.max(0, Math.floor(main.scrollTop / ROW_PX) - 20);
    const last = Math.min(rows.length, first + Math.ceil(main.clientHeight / ROW_PX) + 40);
    const fragment = document.createDocumentFragment();
    for (let index = first; index < last; index++) fragment.append(drawRow(rows[index], index));
    space.replaceChildren(fragment);
  }
  function drawRow(row, index) {
    const line = element('div', 'row ' + row.kind);
    line.style.top = index * ROW_PX + 'px';
    line.dataset.at = index;
    if (index === currentIndex) line.classList.add('here');
    if (row.kind === 'file') {
      const n = page.fileShares(row.number);
      line.append(element('span', '', (row.unfolded ? '▾ ' : '▸ ') + row.file.path), element('span', 'share', page.percent(n[1])));
      if (row.file.note) line.append(element('span', 'note', 'this file ' + row.file.note));
      return line;
    }
    if (row.kind === 'gap') {
      line.append(element('span', 'text', `${' '.repeat(37)}⋮ ${row.count} lines`));
      line.title = 'show these lines';
      return line;
    }
    drawNumbers(line, row.kind === 'call' ? (page.isFiltered() ? null : row.call.n) : row.entry && page.lineShares(row.number, row.line));
    if (row.kind === 'call') {
      line.append(element('span', 'at'), element('span', 'fold'));
      const call = row.call, file = call.p < 0 ? '' : ' ' + page.baseName(data.files[call.p].path) + ':' + call.l;
      const path = call.l ? file : ' (line 0)', name = data.functions[call.f].name;
      const text = element('span', 'text', '    '.repeat(row.depth) + '↳ ' + page.shortName(name) + path + '  ');
      page.highlight(text, call.s, '');
      text.title = name;
      line.append(text);
      return line;
    }
    line.append(element('span', 'at', row.line));
    if (row.entry && row.entry.i) {
      const fold = element('button', 'fold', openLines.has(row.key) ? '▾' : '▸');
      fold.title = 'inlined calls';
      fold.tabIndex = -1;
      line.append(fold);
    } else line.append(element('span', 'fold'));
    if (hitIndex >= 0 && hits[hitIndex] === index) line.classList.add('found');
    const text = element('span', 'text');
    if (page.isPython(row.file) && row.line) page.highlight(text, row.text, row.openQuote); else text.append(row.text);
    line.append(text);
    const chip = loops.chip(row.entry);
    if (chip) line.append(chip);
    return line;
  }
  function drawNumbers(line, n) {
    const heat = element('span', 'heat'), hasShares = n && n[2];
    const share = hasShares ? Math.min(1, (heatByTotal ? n[3] : n[1]) / page.all()) : 0;
    if (share > 0) heat.style.background = `rgba(var(--heat), ${(0.12 + 0.88 * Math.sqrt(share)).toFixed(3)})`;
    line.append(heat, page.share(hasShares ? n[1] : null, 'number'), page.share(hasShares ? n[3] : null, 'number'));
    line.append(element('span', 'number samples' + (hasShares && !n[0] ? ' zero' : ''), hasShares ? page.count(n[0]) : ''));
  }

  // Moving between rows.

  function goToRow(index, centre) {
    if (index < 0 || index >= rows.length) return;
    currentIndex = index;
    currentKey = rows[index].key;
    const top = index * ROW_PX, view = main.clientHeight - ROW_PX;
    if (centre || top < main.scrollTop || top > main.scrollTop + view - ROW_PX * 2) main.scrollTop = Math.max(0, top - view / 3);
    draw();
    describe();
  }
  const findRow = (file, line) => rows.findIndex((row) => row.kind === 'line' && row.number === file && row.line === line);
  function goToLine(file, line) {
    page.view('source');
    if (findRow(file, line) < 0) {
      openFiles.set(file, true);
      layOut();
    }
    if (findRow(file, line) < 0) {
      const gap = rows.find((row) => row.kind === 'gap' && row.number === file && row.first <= line && line < row.first + row.count);
      if (gap) openGap(gap);
    }
    goToRow(findRow(file, line), true);
  }
  function goToFunction(number) {
    const lines = data.functions[number].at;
    if (lines) goToLine(lines[0], lines[1]);
  }
  function goToHotLine(step) {
    const minWeight = page.all() / 200;
    for (let index = currentIndex + step; index >= 0 && index < rows.length; index += step) {
      const row = rows[index];
      if (row.kind === 'line' && row.entry && page.lineShares(row.number, row.line)[heatByTotal ? 3 : 1] >= minWeight) return goToRow(index, true);
    }
  }
  function fold(index) {
    const row = rows[index];
    if (!row) return;
    if (row.kind === 'file') { openFiles.set(row.number, !row.unfolded); return layOut(); }
    if (row.kind === 'gap') return openGap(row);
    if (row.kind !== 'line' || !row.entry || !row.entry.i) return;
    if (!openLines.delete(row.key)) openLines.add(row.key);
    layOut();
  }
  function openGap(row) {
    for (let line = row.first; line < row.first + row.count; line++) openGaps.add(row.number + ':' + line);
    layOut();
  }

  // Facts about the current line.

  // Callers, calls and instructions have figures for the whole recording only.
  const ifAll = (weight) => (page.isFiltered() ? '' : page.percent(weight));
  const withScopeNote = (what) => (page.isFiltered() ? `${what} (shares are known of the whole recording only)` : what);
  const loops = loopViews(page, withScopeNote);
  function describe() {
    panel.replaceChildren();
    const row = rows[currentIndex];
    if (!row || row.kind !== 'line' || !row.entry) return;
    const entry = row.entry;
    panel.append(...loops.sections(entry));
    for (const number of entry.f) {
      const fn = data.functions[number], section = element('section');
      const title = element('h3', '', withScopeNote(`${page.shortName(fn.name)}: called by`));
      title.title = fn.name;
      section.append(title);
      if (!fn.callers) section.append(element('span', '', 'nothing that was seen'));
      for (const [caller, callSite, weight] of fn.callers || []) {
        const position = callSite && callSite[1] ? ':' + callSite[1] : '';
        section.append(makeLink(`${ifAll(weight)}  ${page.nameOf(caller)}${position}`, () => {
          if (position) goToLine(callSite[0], callSite[1]); else goToFunction(caller);
        }));
      }
      panel.append(section);
    }
    if (entry.c) {
      const section = element('section');
      section.append(element('h3', '', withScopeNote('this line calls')));
      for (const [callee, weight] of entry.c) {
        section.append(makeLink(`${ifAll(weight)}  ${page.nameOf(callee)}`, () => goToFunction(callee)));
      }
      panel.append(section);
    }
    if (entry.a !== undefined) panel.append(assembly(entry));
  }
  function makeLink(text, action) {
    const button = element('button', 'link', text);
    button.addEventListener('click', action);
    return button;
  }
  function assembly(entry) {
    const section = element('section', 'assembly'), title = element('button', 'link', withScopeNote('assembly of this line'));
    title.id = 'assembly';
    section.append(title);
    title.addEventListener('click', () => {
      showsAssembly = !showsAssembly;
      const shown = section.querySelector('pre');
      if (shown) shown.remove(); else showAssembly(section, entry);
    });
    if (showsAssembly) requestAnimationFrame(() => showAssembly(section, entry));
    return section;
  }
  function showAssembly(section, entry) {
    const pre = element('pre');
    section.append(pre);
    if (typeof entry.a === 'string') return pre.append(entry.a);
    let hottest = null, maxWeight = 0;
    for (const [name, instructions] of entry.a) {
      pre.append(element('div', 'faint', name));
      for (const [address, weight, words] of instructions) {
        const text = `${(weight ? ifAll(weight) : '').padStart(8)}  ${address}  ${words}`;
        const line = element('div', '', text);
        if (weight > maxWeight) [hottest, maxWeight] = [line, weight];
        if (weight) line.style.background = `rgba(var(--heat), ${(0.5 * Math.sqrt(Math.min(1, weight / (page.data.weight || 1)))).toFixed(3)})`;
        pre.append(line);
      }
    }
    if (!hottest) return;
    hottest.classList.add('hottest');
    pre.scrollTop = hottest.offsetTop - pre.offsetTop - pre.clientHeight / 2;
  }

  // Lists and search.

  function drawLists() {
    const list = $('functions');
    list.replaceChildren();
    for (const number of page.listedFunctions()) {
      const row = data.functions[number];
      list.append(makeItem(page.functionShares(number), page.shortName(row.name), row.name, () => goToFunction(number)));
      for (const [name, n] of row.compilations || []) {
        const compilation = makeItem(page.isFiltered() ? [null, null, null, null] : n, page.shortName(name), withScopeNote(name), () => goToFunction(number));
        compilation.classList.add('more');
        list.append(compilation);
      }
    }
    $('files').replaceChildren(...data.files.map((file, number) => {
      return makeItem([...page.fileShares(number), null, null], page.baseName(file.path), file.path, () => {
        openFiles.set(number, true);
        layOut();
        goToRow(file.row, true);
      });
    }));
  }
  function makeItem(n, text, title, action) {
    const button = element('button', 'item');
    button.title = title;
    button.append(page.share(n[1]), page.share(n[3]), element('span', '', text));
    button.addEventListener('click', () => { action(); main.focus(); });
    return button;
  }
  function findHits() {
    const wanted = page.wanted();
    hits = [];
    if (wanted) rows.forEach((row, index) => { if (row.kind === 'line' && row.text.toLowerCase().includes(wanted)) hits.push(index); });
    hitIndex = hits.length ? Math.max(0, Math.min(hitIndex, hits.length - 1)) : -1;
    return wanted;
  }
  function find() {
    layOut();
    hitIndex = -1;
    $('hits').textContent = page.wanted() ? (hits.length ? hits.length + ' lines' : 'none') : '';
    next(1);
  }
  function next(step) {
    if (!hits.length) return draw();
    hitIndex = (hitIndex + step + hits.length) % hits.length;
    $('hits').textContent = `${hitIndex + 1} of ${hits.length}`;
    goToRow(hits[hitIndex], true);
  }

  main.addEventListener('scroll', () => requestAnimationFrame(draw), { passive: true });
  main.addEventListener('click', (event) => {
    const row = event.target.closest('.row');
    if (!row) return;
    const index = Number(row.dataset.at), clickedRow = rows[index];
    if (event.target.closest('button.chip')) { loops.open(); return goToRow(index, false); }
    if (clickedRow.kind === 'call' && clickedRow.call.p >= 0) return goToLine(clickedRow.call.p, clickedRow.call.l);
    if (clickedRow.kind !== 'line' || event.target.closest('button.fold')) fold(index);
    goToRow(index, false);
  });
  function toggleMode() { heatByTotal = !heatByTotal; $('mode').textContent = heatByTotal ? 'heat: total' : 'heat: self'; draw(); }
  $('mode').addEventListener('click', toggleMode);
  const keys = {
    ArrowDown: () => goToRow(currentIndex + 1), j: () => goToRow(currentIndex + 1), ArrowUp: () => goToRow(currentIndex - 1), k: () => goToRow(currentIndex - 1),
    PageDown: () => goToRow(Math.min(rows.length - 1, currentIndex + Math.floor(main.clientHeight / ROW_PX))),
    PageUp: () => goToRow(Math.max(0, currentIndex - Math.floor(main.clientHeight / ROW_PX))),
    Home: () => goToRow(0), End: () => goToRow(rows.length - 1), n: () => goToHotLine(1), p: () => goToHotLine(-1), Enter: () => fold(currentIndex),
    ' ': () => fold(currentIndex), m: toggleMode, a: () => { const button = $('assembly'); if (button) button.click(); },
  };
  return { show() { layOut(); drawLists(); describe(); }, draw, find, next, keys, goToLine, goToFunction };
}

// Syntax highlighting of Python.

const WORDS = new Set(`False None True and as assert async await break class continue def del elif else except finally for from global if
import in is lambda nonlocal not or pass raise return try while with yield match case`.split(/\s+/));
const TOKEN = /("""|''')|(#.*)|((?:[rbfuRBFU]{0,2})(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?))|([A-Za-z_]\w*)|(\d[\w.]*)|@[\w.]+|\s+|./gu;

/** Returns the triple quote that is open after a line, or an empty string. */
function stringAfter(text, openQuote) {
  let quote = openQuote, rest = text;
  while (rest) {
    if (quote) {
      const end = rest.indexOf(quote);
      if (end < 0) return quote;
      [rest, quote] = [rest.slice(end + 3), ''];
      continue;
    }
    if (!/"""|'''/.test(rest)) return '';
    TOKEN.lastIndex = 0;
    let token;
    while ((token = TOKEN.exec(rest)) && !token[1]);
    if (!token) return '';
    [quote, rest] = [token[1], rest.slice(token.index + 3)];
  }
  return quote;
}
function highlightPython(into, text, openQuote, element) {
  let rest = text, quote = openQuote;
  while (rest) {
    if (quote) {
      const end = rest.indexOf(quote), length = end < 0 ? rest.length : end + 3;
      into.append(element('i', 'string', rest.slice(0, length)));
      [rest, quote] = [rest.slice(length), ''];
      continue;
    }
    let length = 0;
    TOKEN.lastIndex = 0;
    for (const token of rest.matchAll(TOKEN)) {
      const [all, triple, comment, string, word, number] = token;
      length = token.index + all.length;
      if (triple) { into.append(element('i', 'string', all)); quote = triple; break; }
      const kind = comment ? 'comment' : string ? 'string' : number ? 'digits' : word && WORDS.has(word) ? 'word' : all[0] === '@' ? 'word' : '';
      into.append(kind ? element('i', kind, all) : all);
    }
    if (!length) { into.append(rest); return; }
    rest = rest.slice(length);
  }
}
