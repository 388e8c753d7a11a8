// What is chosen, and what follows from it. Everything from the recording reaches the page as text nodes (textContent),
// never as markup.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const $ = (id) => document.getElementById(id);
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const HOTTEST = 10, CALLING = 5, FUNCTIONS = 12;
  const stacks = new Stacks(data), { clock } = data.stacks;
  let thread = -1, range = null, view = 'hottest', chosen = stacks.choose(-1, null);

  const all = () => chosen.all || 1;
  const isFiltered = () => chosen.lines !== null;
  const count = (number) => number.toLocaleString('en');
  const percent = (weight) => (weight / all() * 100).toFixed(1) + ' %';
  const amount = (weight) => (clock ? (weight / 1e9).toFixed(2) + ' s' : count(weight));
  const isSmall = (weight) => weight / all() < 0.0005;
  const share = (weight, className) => {
    return element('span', (className || '') + (weight !== null && isSmall(weight) ? ' zero' : ''), weight === null ? '' : percent(weight));
  };
  // Of a line or a function: own samples, own weight, total samples, total weight.
  const ofLine = (file, line) => {
    if (chosen.lines) return chosen.lines[stacks.lineNumbers.get(file + ':' + line)] || nothing;
    const entry = data.files[file].lines[line];
    return entry ? entry.n : nothing;
  };
  const ofFunction = (number) => (chosen.functions ? chosen.functions[number] || nothing : data.functions[number].n);
  let files = null;
  const ofFile = (number) => {
    if (!files) {
      files = data.files.map((file, at) => Object.keys(file.lines).reduce(([samples, weight], line) => {
        const n = ofLine(at, Number(line));
        return [samples + n[0], weight + n[1]];
      }, [0, 0]));
    }
    return files[number];
  };
  const listed = () => {
    const rows = data.functions.map((_, number) => number).filter((number) => data.functions[number].listed);
    return isFiltered() ? rows.filter((row) => ofFunction(row)[2]).sort((a, b) => ofFunction(b)[1] - ofFunction(a)[1]) : rows;
  };
  const plain = (path) => path.slice(path.lastIndexOf('/') + 1);
  /** The module part of a name is shortened: numba.np.linalg.f.<locals>.g is n.n.linalg.f.g. */
  const short = (name) => name[0] === '[' ? name : name.replace(/(?:[\w<>]+\.)+[\w<>]+/g, (dotted) => {
    const parts = dotted.split('.').filter((part) => part !== '<locals>' && part !== '__main__');
    return parts.map((part, at) => (at < parts.length - 3 ? part[0] : part)).join('.');
  });
  const nameOf = (number) => {
    const { name, kind, module } = data.functions[number];
    const file = !module ? '' : /\/__init__\.py$/.test(module) ? module.split('/').slice(-2).join('/') : plain(module);
    return short(name) + (kind === 'python' && file ? ` (${file})` : '');
  };
  const isPython = (file) => !/\.(c|cc|cpp|h|hpp|rs|jl|f90)$/.test(file.path);

  const page = {
    data, stacks, $, element, all, isFiltered, count, percent, amount, share, ofLine, ofFunction, ofFile, listed, plain, short, nameOf, isPython,
    unit: clock ? 'seconds' : data.stacks.unit,
    highlight: (into, text, begins) => highlightPython(into, text, begins, element),
    wanted: () => $('search').value.toLowerCase(),
    chosen: () => chosen, range: () => range, viewed: () => view, view: showView,
    goToFunction: (number) => table.goToFunction(number),
    goToLine: (file, line) => table.goToLine(file, line),
    chooseThread: (number) => { thread = thread === number ? -1 : number; $('thread').value = thread; choose(); },
    chooseRange: (wanted) => { range = wanted; choose(); },
    previewRange: (wanted) => { range = wanted; time.mark(); },
  };
  const table = sourceTable(page), pics = pictures(page), time = timeline(page), compiled = compilations(page);

  function choose() {
    chosen = stacks.choose(thread, range);
    files = null;
    time.mark();
    show();
  }
  function show() { summary(); hottest(); table.show(); pics.show(); compiled.show(); }
  function showView(wanted) {
    if (view === wanted) return;
    view = wanted;
    for (const one of document.querySelectorAll('.view')) one.classList.toggle('shown', one.id === view);
    for (const tab of document.querySelectorAll('#tabs button[data-view]')) tab.setAttribute('aria-selected', tab.dataset.view === view);
    $('treecontrols').hidden = view !== 'flame' && view !== 'tree';
    $('sourcecontrols').hidden = view !== 'source';
    $('hits').textContent = '';
    (view === 'source' ? $('main') : $(view)).focus();
    table.draw();
    pics.draw();
  }

  // --- what is there however one looks
  // ----------------------------------------------------------------------------------

  function summary() {
    const made = element('span', '', `${amount(chosen.all)} ${clock ? data.stacks.unit.startsWith('wall') ? 'of wall time' : 'of processor time' : data.stacks.unit}`);
    const parts = data.stacks.activities.map((what, at) => [what, chosen.activities[at], at]).filter(([, weight]) => !isSmall(weight));
    $('summary').replaceChildren(made, ...parts.map(([what, weight, at]) => {
      const part = element('span', 'activity'), colour = element('span', 'colour');
      colour.style.background = `var(${SHADES[at]})`;
      part.append(colour, element('b', '', percent(weight)), ` ${what}`);
      part.title = amount(weight);
      return part;
    }), ...(isFiltered() ? [] : data.facts.map(([what, samples, weight]) => element('span', 'faint', `${weight ? percent(weight) : count(samples)} ${what}`))));
  }
  function hottest() {
    const lines = data.stacks.hot.map((where, at) => [chosen.hot[at], where]).filter(([hot]) => hot[0]).sort((a, b) => b[0][0] - a[0][0]);
    const place = ([at, line]) => `${plain(data.files[at].path)}:${line}`;
    $('hotlines').tBodies[0].replaceChildren(...lines.slice(0, HOTTEST).map(([hot, where]) => {
      const [at, line, isCompiled, by] = where;
      const file = data.files[at], source = element('code');
      const ownText = line ? textOf(file, line) : '(line 0: the compiler names no line)';
      // Generated code has no file: the line that it ran for.
      const text = ownText || (by ? textOf(data.files[by[0]], by[1]) : '');
      if (line && (isPython(file) || by)) page.highlight(source, text.trim(), ''); else source.append(text);
      const made = row(hot[0], hot[1], [place(where) + (by ? ' by ' + place(by) : ''), by ? data.files[by[0]].path : file.path], source, () => table.goToLine(at, line));
      const inC = hot[2] / hot[0], entry = file.lines[line], advised = entry && (entry.o || []).some((loop) => loop.advice.length);
      made.append(element('td', 'faint', (isCompiled ? 'compiled' : 'Python') + (inC >= 0.1 ? `, ${(inC * 100).toFixed(0)} % in C` : '') + (advised ? ' ⚑' : '')));
      return made;
    }));
    const sum = lines.reduce((whole, [hot]) => whole + hot[0], 0);
    $('rest').textContent = `All ${count(lines.length)} lines of your files and of compiled code: ${amount(sum)}, ${percent(sum)}.`;
    const least = chosen.all / 50, calling = [...chosen.calling].filter(([, [, there]]) => there && there >= least).sort((a, b) => b[1][0] - a[1][0]);
    $('calling').hidden = !calling.length;
    $('calling').tBodies[0].replaceChildren(...calling.slice(0, CALLING).map(([number, [below, , compiling]]) => {
      const [at, line] = stacks.places[number], file = data.files[at], source = element('code');
      page.highlight(source, textOf(file, line).trim(), '');
      const made = row(below, null, [place([at, line]), file.path], source, () => table.goToLine(at, line));
      made.append(element('td', 'faint', compiling >= below / 10 ? `${(compiling / below * 100).toFixed(0)} % compiling` : ''));
      return made;
    }));
    const libraries = [...chosen.libraries].filter(([, own]) => own >= chosen.all / 200).sort((a, b) => b[1] - a[1]);
    $('hotlibraries').hidden = !libraries.length;
    $('hotlibraries').tBodies[0].replaceChildren(...libraries.slice(0, FUNCTIONS).map(([name, own]) => row(own, null, null, name, () => {})));
    const functions = data.functions.map((_, at) => [ofFunction(at), at]).filter(([n, at]) => (n[1] || n[3] >= chosen.all / 200) && data.functions[at].yours).sort((a, b) => b[0][1] - a[0][1] || b[0][3] - a[0][3]);
    $('hotfunctions').hidden = !functions.length;
    $('hotfunctions').tBodies[0].replaceChildren(...functions.slice(0, FUNCTIONS).map(([n, at]) => {
      const { name, kind, module, at: lines } = data.functions[at], code = element('code'), where = lines ? `${plain(data.files[lines[0]].path)}:${lines[1]}` : plain(module || '');
      code.append(element('span', 'dot ' + kind), short(name));
      code.title = name;
      const made = row(n[1], n[3], null, code, () => (lines ? table.goToFunction(at) : flameOf(at)));
      made.append(element('td', 'faint', where));
      return made;
    }));
  }
  function flameOf(number) { $('search').value = data.functions[number].name; showView('flame'); pics.find(); }
  function row(own, total, where, what, action) {
    const made = element('tr'), cell = (inner, className) => { const td = element('td', className); td.append(inner); return td; };
    made.append(cell(amount(own), 'n'), cell(share(own), 'n'));
    if (total !== null) made.append(cell(share(total), 'n'));
    if (where) {
      const link = element('button', 'link', where[0]);
      link.title = where[1];
      made.append(cell(link));
    }
    made.append(cell(what, 'what'));
    made.addEventListener('click', action);
    return made;
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
    choice.addEventListener('change', () => { thread = Number(choice.value); choose(); });
  }
  function theme(dark) { document.documentElement.classList.toggle('dark', dark); time.draw(); }

  // --- keys
  // ---------------------------------------------------------------------------------------------------------------

  const search = $('search'), VIEWS = ['hottest', 'source', 'flame', 'tree', 'balance', 'compilations'].slice(0, compiled.any ? 6 : 5);
  const find = () => {
    if (['hottest', 'balance', 'compilations'].includes(view)) { showView('source'); search.focus(); }
    if (view === 'source') table.find(); else pics.find();
    if (!search.value) $('hits').textContent = '';
  };
  search.addEventListener('input', find);
  search.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && view === 'source') table.next(event.shiftKey ? -1 : 1);
    if (event.key === 'Escape') (view === 'source' ? $('main') : $(view)).focus();
  });
  for (const tab of document.querySelectorAll('#tabs button[data-view]')) tab.addEventListener('click', () => showView(tab.dataset.view));
  window.addEventListener('resize', () => { time.draw(); table.draw(); pics.redraw(); });
  $('theme').addEventListener('click', () => theme(!document.documentElement.classList.contains('dark')));
  $('keys').addEventListener('click', () => $('help').showModal());
  const KEYS = {
    d: () => $('theme').click(), '/': () => { search.focus(); search.select(); }, '?': () => $('help').showModal(),
    Escape: () => { if (range) page.chooseRange(null); else pics.whole(); },
  };
  document.addEventListener('keydown', (event) => {
    const inField = /^(INPUT|SELECT)$/.test(event.target.tagName) || $('help').open;
    if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
    const digit = VIEWS[Number(event.key) - 1], ofView = view === 'source' ? table.keys : pics.keys;
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
  if (data.files.length) { const first = data.functions.findIndex((row) => row.listed && row.at); if (first >= 0) { table.goToFunction(first); showView('hottest'); } }
})();
