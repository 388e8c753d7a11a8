// State of the selection, and everything that depends on it. Text from the recording is added to the page only as text
// nodes (textContent), never as markup.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const $ = (id) => document.getElementById(id);
  const element = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const HOTTEST = 10, CALLING = 5, FUNCTIONS = 12;
  const stacks = new Stacks(data), { clock } = data.stacks;
  let thread = -1, process = -1, range = null, view = 'hottest', selection = stacks.select(null, null), lineTree = null;
  const chosenThreads = () => (thread < 0 && process < 0 ? null : data.threads.map((_, number) => isChosen(number)));
  const isChosen = (number) => thread < 0 ? process < 0 || data.threads[number][2] === process : number === thread;

  const all = () => selection.all || 1;
  const isFiltered = () => selection.lines !== null;
  const count = (number) => number.toLocaleString('en');
  const percent = (weight) => (weight / all() * 100).toFixed(1) + ' %';
  const amount = (weight) => (clock ? (weight / 1e9).toFixed(2) + ' s' : count(weight));
  const isSmall = (weight) => weight / all() < 0.0005;
  const share = (weight, className) => {
    return element('span', (className || '') + (weight !== null && isSmall(weight) ? ' zero' : ''), weight === null ? '' : percent(weight));
  };
  // Shares of a line or a function: self samples, self weight, total samples, total weight.
  const lineShares = (file, line) => {
    if (selection.lines) return selection.lines[stacks.lineNumbers.get(file + ':' + line)] || NO_SHARES;
    const entry = data.files[file].lines[line];
    return entry ? entry.n : NO_SHARES;
  };
  const functionShares = (number) => (selection.functions ? selection.functions[number] || NO_SHARES : data.functions[number].n);
  let files = null;
  const fileShares = (number) => {
    if (!files) {
      files = data.files.map((file, at) => Object.keys(file.lines).reduce(([samples, weight], line) => {
        const n = lineShares(at, Number(line));
        return [samples + n[0], weight + n[1]];
      }, [0, 0]));
    }
    return files[number];
  };
  const listedFunctions = () => {
    const rows = data.functions.map((_, number) => number).filter((number) => data.functions[number].listed);
    return isFiltered() ? rows.filter((row) => functionShares(row)[2]).sort((a, b) => functionShares(b)[1] - functionShares(a)[1]) : rows;
  };
  const baseName = (path) => path.slice(path.lastIndexOf('/') + 1);
  /** Abbreviates the modules of a name: numba.np.linalg.f.<locals>.g becomes n.n.linalg.f.g. */
  const shortName = (name) => name[0] === '[' ? name : name.replace(/(?:[\w<>]+\.)+[\w<>]+/g, (dotted) => {
    const parts = dotted.split('.').filter((part) => part !== '<locals>' && part !== '__main__');
    return parts.map((part, at) => (at < parts.length - 3 ? part[0] : part)).join('.');
  });
  const nameOf = (number) => {
    const { name, kind, module } = data.functions[number];
    const file = !module ? '' : /\/__init__\.py$/.test(module) ? module.split('/').slice(-2).join('/') : baseName(module);
    return shortName(name) + (kind === 'python' && file ? ` (${file})` : '');
  };
  const isPython = (file) => !/\.(c|cc|cpp|h|hpp|rs|jl|f90)$/.test(file.path);

  const page = {
    data, stacks, $, element, all, isFiltered, count, percent, amount, share, lineShares, functionShares, fileShares, listedFunctions, baseName, shortName, nameOf, isPython,
    unit: clock ? 'seconds' : data.stacks.unit,
    highlight: (into, text, openQuote) => highlightPython(into, text, openQuote, element),
    wanted: () => $('search').value.toLowerCase(),
    selection: () => selection, range: () => range, viewed: () => view, view: showView,
    goToFunction: (number) => table.goToFunction(number),
    goToLine: (file, line) => table.goToLine(file, line),
    isChosen, process: () => process,
    chooseThread: (number) => { thread = thread === number ? -1 : number; chooseThreads(); },
    chooseProcess: (number) => { process = process === number ? -1 : number; thread = -1; chooseThreads(); },
    chooseRange: (chosen) => { range = chosen; applySelection(); },
    previewRange: (chosen) => { range = chosen; time.mark(); },
  };
  const table = sourceTable(page), graphs = pictures(page), time = timeline(page), strip = processes(page), compiled = compilations(page);

  function applySelection() {
    selection = stacks.select(chosenThreads(), range);
    files = null;
    time.mark();
    show();
  }
  function chooseThreads() {
    $('thread').value = thread;
    time.draw();
    applySelection();
  }
  function show() { strip.draw(); showSummary(); showAnswer(); showHottest(); table.show(); graphs.show(); compiled.show(); }
  function showView(name) {
    if (view === name) return;
    view = name;
    for (const section of document.querySelectorAll('.view')) section.classList.toggle('shown', section.id === view);
    for (const tab of document.querySelectorAll('#tabs button[data-view]')) tab.setAttribute('aria-selected', tab.dataset.view === view);
    $('treecontrols').hidden = view !== 'flame' && view !== 'tree';
    $('sourcecontrols').hidden = view !== 'source';
    $('hits').textContent = '';
    (view === 'source' ? $('main') : $(view)).focus();
    table.draw();
    graphs.draw();
  }

  // Page elements outside of the views.

  function showSummary() {
    const total = element('span', '', `${amount(selection.all)} ${clock ? data.stacks.unit.startsWith('wall') ? 'of wall time' : 'of CPU time' : data.stacks.unit}`);
    const parts = data.stacks.activities.map((label, activity) => [label, selection.activities[activity], activity]).filter(([, weight]) => !isSmall(weight));
    $('summary').replaceChildren(total, ...parts.map(([label, weight, activity]) => {
      const part = element('span', 'activity'), colour = element('span', 'colour');
      colour.style.background = `var(${SHADES[activity]})`;
      part.append(colour, element('b', '', percent(weight)), ` ${label}`);
      part.title = amount(weight);
      return part;
    }), ...(isFiltered() ? [] : data.facts.map(([label, samples, weight]) => element('span', 'faint', `${weight ? percent(weight) : count(samples)} ${label}`))),
    ...(isFiltered() ? [] : data.outside.map(([label, ns]) => element('span', 'faint', `${amount(ns)} ${label}`))));
  }
  /** Returns a cell with ⚑, which opens the advice below its row. */
  function flagCell(tr, advice) {
    const cell = element('td', 'flag');
    if (!advice || !advice.length) return cell;
    const flag = element('button', '', '⚑');
    flag.title = advice.join('\n');
    flag.setAttribute('aria-expanded', 'false');
    flag.addEventListener('click', (event) => {
      event.stopPropagation();
      const open = tr.nextElementSibling, isOpen = open && open.className === 'advice';
      flag.setAttribute('aria-expanded', String(!isOpen));
      if (isOpen) { open.remove(); return; }
      const row = element('tr', 'advice'), text = element('td');
      text.colSpan = tr.cells.length - 3;
      advice.forEach((sentence) => text.append(element('div', '', sentence)));
      const gap = element('td');
      gap.colSpan = 3;
      row.append(gap, text);
      tr.after(row);
    });
    cell.append(flag);
    return cell;
  }
  /** Returns the answer for the selection: the tree of the user's lines, and what helps, which is about the whole recording. */
  function answerOfSelection() {
    if (!isFiltered()) return data.answer;
    lineTree = lineTree || new LineTree(data, stacks, (file, line) => textOf(data.files[file], line));
    return { ...lineTree.select(chosenThreads(), range), helps: data.answer.helps };
  }
  const flagged = (entry) => (entry.o || []).flatMap((loop) => loop.advice.filter(([, , mark]) => mark === '⚑').map(([, text]) => text));
  function showAnswer() {
    const { rows, helps, elsewhere, weight: whole } = answerOfSelection(), isShown = rows.length > 0;
    const ofWhole = (weight) => `${(weight / (whole || 1) * 100).toFixed(1)} %`;
    $('answer').hidden = !isShown;
    $('helps').hidden = $('helpstitle').hidden = !helps.length;
    $('helpstitle').textContent = isFiltered() ? 'What helps (in the whole recording)' : 'What helps';
    const numbers = (tr, weight) => tr.append(element('td', 'n', amount(weight)), element('td', 'n', ofWhole(weight)));
    $('answer').tBodies[0].replaceChildren(...rows.map((row) => {
      const tr = element('tr'), what = element('td', 'what'), label = element('button', 'link', row.label), code = element('span');
      numbers(tr, row.weight);
      label.title = row.path;
      if (row.code) page.highlight(code, row.text, ''); else code.append(row.text);
      what.append(element('span', 'branches', row.branches), label, '  ', code);
      tr.append(flagCell(tr, row.advice && [row.advice]), what, element('td', 'faint', row.of));
      tr.cells[4].title = row.of;
      if (row.at) tr.addEventListener('click', () => table.goToLine(row.at[0], row.at[1]));
      return tr;
    }));
    if (elsewhere[0] && elsewhere[0] >= whole / 20) {
      const tr = element('tr', 'elsewhere'), words = elsewhere[1].slice(0, 3).map(([word, weight]) => `${word} ${(weight / elsewhere[0] * 100).toFixed(0)}`);
      numbers(tr, elsewhere[0]);
      tr.append(element('td'), element('td', 'what', 'below no line of yours'), element('td', 'faint', words[0] || ''));
      tr.cells[4].title = words.join(', ');
      $('answer').tBodies[0].append(tr);
    }
    $('helps').replaceChildren(...helps.map((help) => {
      const item = element('li');
      item.append(element('span', '', amount(help.weight)), element('span', '', help.text));
      return item;
    }));
  }
  function showHottest() {
    const lines = data.stacks.hot.map((hotLine, number) => [selection.hot[number], hotLine]).filter(([hot]) => hot[0]).sort((a, b) => b[0][0] - a[0][0]);
    const formatPosition = ([file, line]) => `${baseName(data.files[file].path)}:${line}`;
    $('hotlines').tBodies[0].replaceChildren(...lines.slice(0, HOTTEST).map(([hot, hotLine]) => {
      const [fileIndex, line, isCompiled, caller] = hotLine;
      const file = data.files[fileIndex], source = element('code');
      const sourceText = line ? textOf(file, line) : '(line 0: the compiler names no line)';
      // Generated code has no file, so the user line that ran it is shown.
      const text = sourceText || (caller ? textOf(data.files[caller[0]], caller[1]) : '');
      if (line && (isPython(file) || caller)) page.highlight(source, text.trim(), ''); else source.append(text);
      const tr = tableRow(hot[0], hot[1], [formatPosition(hotLine) + (caller ? ' by ' + formatPosition(caller) : ''), caller ? data.files[caller[0]].path : file.path], source, () => table.goToLine(fileIndex, line));
      const inC = hot[2] / hot[0], entry = file.lines[line], advice = entry ? flagged(entry) : [];
      tr.append(element('td', 'faint', (isCompiled ? 'compiled' : 'Python') + (inC >= 0.1 ? `, ${(inC * 100).toFixed(0)} % in C` : '')));
      tr.cells[2].after(flagCell(tr, advice));
      return tr;
    }));
    const sum = lines.reduce((total, [hot]) => total + hot[0], 0);
    $('rest').textContent = `All ${count(lines.length)} lines of your files and of compiled code: ${amount(sum)}, ${percent(sum)}.`;
    const minWeight = selection.all / 50, calling = [...selection.calling].filter(([, [, elsewhere]]) => elsewhere && elsewhere >= minWeight).sort((a, b) => b[1][0] - a[1][0]);
    $('calling').hidden = !calling.length;
    $('calling').tBodies[0].replaceChildren(...calling.slice(0, CALLING).map(([number, [below, , compiling]]) => {
      const [fileIndex, line] = stacks.places[number], file = data.files[fileIndex], source = element('code');
      page.highlight(source, textOf(file, line).trim(), '');
      const tr = tableRow(below, null, [formatPosition([fileIndex, line]), file.path], source, () => table.goToLine(fileIndex, line));
      tr.append(element('td', 'faint', compiling >= below / 10 ? `${(compiling / below * 100).toFixed(0)} % compiling` : ''));
      return tr;
    }));
    const libraries = [...selection.libraries].filter(([, own]) => own >= selection.all / 200).sort((a, b) => b[1] - a[1]);
    $('hotlibraries').hidden = !libraries.length;
    $('hotlibraries').tBodies[0].replaceChildren(...libraries.slice(0, FUNCTIONS).map(([name, own]) => tableRow(own, null, null, name, () => {})));
    const functions = data.functions.map((_, number) => [functionShares(number), number]).filter(([n, number]) => (n[1] || n[3] >= selection.all / 200) && data.functions[number].yours).sort((a, b) => b[0][1] - a[0][1] || b[0][3] - a[0][3]);
    $('hotfunctions').hidden = !functions.length;
    $('hotfunctions').tBodies[0].replaceChildren(...functions.slice(0, FUNCTIONS).map(([n, number]) => {
      const { name, kind, module, at: lines } = data.functions[number], code = element('code'), position = lines ? `${baseName(data.files[lines[0]].path)}:${lines[1]}` : baseName(module || '');
      code.append(element('span', 'dot ' + kind), shortName(name));
      code.title = name;
      const tr = tableRow(n[1], n[3], null, code, () => (lines ? table.goToFunction(number) : flameOf(number)));
      tr.append(element('td', 'faint', position));
      return tr;
    }));
  }
  function flameOf(number) { $('search').value = data.functions[number].name; showView('flame'); graphs.find(); }
  function tableRow(own, total, position, content, action) {
    const tr = element('tr'), makeCell = (content, className) => { const td = element('td', className); td.append(content); return td; };
    tr.append(makeCell(amount(own), 'n'), makeCell(share(own), 'n'));
    if (total !== null) tr.append(makeCell(share(total), 'n'));
    if (position) {
      const link = element('button', 'link', position[0]);
      link.title = position[1];
      tr.append(makeCell(link));
    }
    tr.append(makeCell(content, 'what'));
    tr.addEventListener('click', action);
    return tr;
  }
  function textOf(file, line) {
    for (const [first, texts] of file.parts) if (line >= first && line < first + texts.length) return texts[line - first];
    return file.note ? `(the source ${file.note})` : '';
  }
  function legend() {
    const words = [['self', 'the time in this line or function itself; of interpreted lines also in the C functions that they call (of compiled lines: only in the list of hottest lines)'],
      ['total', 'self and everything that was called from there; recursion counts once'],
      ['line 0', 'compiled code that its compiler gave no line: what the optimiser made of several lines, mostly'],
      ['inlined (▸)', 'calls that the compiler replaced by the function\'s code; unfold a line to see its share in each']];
    const kinds = [['compiled', 'compiled at run time'], ['python', 'Python that is interpreted'], ['native', 'libraries and C code'], ['kernel', 'the kernel']];
    for (const list of document.querySelectorAll('dl.legend')) {
      for (const [word, meaning] of words) list.append(element('dt', '', word), element('dd', '', meaning));
      const colours = element('dd');
      for (const [kind, meaning] of kinds) colours.append(element('span', 'dot ' + kind), meaning + '  ');
      list.append(element('dt', '', 'colours'), colours);
    }
  }
  function facts() {
    const when = data.recorded ? new Date(data.recorded * 1000) : null, two = (n) => String(n).padStart(2, '0');
    const date = when ? `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${two(when.getHours())}:${two(when.getMinutes())}` : '';
    document.title = [data.program, data.command, date].filter((part) => part).join(' · ');
    $('program').textContent = data.program;
    $('title').textContent = [date, data.title, data.command].filter((part) => part).join(' · ');
    $('title').title = $('title').textContent;
    for (const note of data.notes) $('notes').append(element('li', '', note));
    const choice = $('thread');
    choice.append(new Option('all threads', '-1'));
    data.threads.map((row, number) => [row, number]).sort((a, b) => b[0][1] - a[0][1]).forEach(([[name, weight], number]) => {
      choice.append(new Option(`${name}: ${percent(weight)}`, number));
    });
    choice.hidden = data.threads.length < 2;
    choice.addEventListener('change', () => { thread = Number(choice.value); process = -1; chooseThreads(); });
  }
  function theme(dark) { document.documentElement.classList.toggle('dark', dark); time.draw(); strip.draw(); }

  // Keyboard shortcuts.

  const search = $('search'), VIEWS = ['hottest', 'source', 'flame', 'tree', 'balance', 'compilations'].slice(0, compiled.hasRows ? 6 : 5);
  const find = () => {
    if (['hottest', 'balance', 'compilations'].includes(view)) { showView('source'); search.focus(); }
    if (view === 'source') table.find(); else graphs.find();
    if (!search.value) $('hits').textContent = '';
  };
  search.addEventListener('input', find);
  search.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && view === 'source') table.next(event.shiftKey ? -1 : 1);
    if (event.key === 'Escape') (view === 'source' ? $('main') : $(view)).focus();
  });
  for (const tab of document.querySelectorAll('#tabs button[data-view]')) tab.addEventListener('click', () => showView(tab.dataset.view));
  window.addEventListener('resize', () => { time.draw(); strip.draw(); table.draw(); graphs.redraw(); });
  $('theme').addEventListener('click', () => theme(!document.documentElement.classList.contains('dark')));
  $('keys').addEventListener('click', () => $('help').showModal());
  const KEYS = {
    d: () => $('theme').click(), '/': () => { search.focus(); search.select(); }, '?': () => $('help').showModal(),
    Escape: () => { if (range) page.chooseRange(null); else if (process >= 0) page.chooseProcess(-1); else graphs.whole(); },
  };
  document.addEventListener('keydown', (event) => {
    const inField = /^(INPUT|SELECT)$/.test(event.target.tagName) || $('help').open;
    if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
    const digit = VIEWS[Number(event.key) - 1], ofView = view === 'source' ? table.keys : graphs.keys;
    const action = digit ? () => showView(digit) : Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : Object.hasOwn(ofView, event.key) ? ofView[event.key] : null;
    if (!action || event.target.tagName === 'BUTTON' && (event.key === 'Enter' || event.key === ' ')) return;
    event.preventDefault();
    action();
  });

  facts();
  legend();
  view = '';
  showView('hottest');
  theme(window.matchMedia('(prefers-color-scheme: dark)').matches);
  show();
  // "Source" opens at the hottest line of the user, or else of compiled code.
  const hottest = data.stacks.hot.map((hotLine, number) => [selection.hot[number][0], hotLine]).filter(([weight, [, line]]) => weight && line);
  hottest.sort((a, b) => b[0] - a[0]);
  const first = hottest.find(([, [file]]) => !data.files[file].library) || hottest[0];
  if (first) { table.goToLine(first[1][0], first[1][1]); showView('hottest'); }
})();
