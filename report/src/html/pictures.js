// Timeline, flame graph, call tree and threads.
const SHADES = ['--a0', '--a1', '--a2', '--a3', '--a4', '--a5', '--a6'];

function timeline(page) {
  const { data, $ } = page;
  const { slice, slices, clock } = data.stacks, LABEL = 110, canvas = $('canvas'), box = $('threads');
  const order = data.threads.map((_, at) => at).filter((at) => data.threads[at][1] || !data.weight);
  order.sort((a, b) => data.threads[b][1] - data.threads[a][1]);
  const row = order.length > 8 ? 9 : order.length > 4 ? 16 : 20;
  // Of each thread and slice, what was done.
  const done = new Map();
  let most = 0;
  for (let at = 0; at < data.stacks.parts.length; at += SAMPLE) {
    const parts = data.stacks.parts, key = parts[at + 1] * slices + parts[at];
    if (!done.has(key)) done.set(key, data.stacks.activities.map(() => 0));
    done.get(key)[parts[at + 3]] += page.stacks.amount(at);
  }
  for (const sums of done.values()) most = Math.max(most, sums.reduce((a, b) => a + b, 0));
  // A thread that runs all the time fills its row; a sample's period may be longer than its slice.
  const full = clock ? Math.min(most, slice) || 1 : most || 1;
  const seconds = (at) => at * slice / 1e9, digits = Math.max(2, Math.ceil(9 - Math.log10(slice)));
  const width = () => Math.max(100, box.clientWidth - LABEL);

  $('from').max = $('to').max = seconds(slices);
  function draw() {
    const scale = window.devicePixelRatio || 1, wide = box.clientWidth, high = order.length * row;
    canvas.width = wide * scale; canvas.height = high * scale;
    canvas.style.height = high + 'px';
    const style = getComputedStyle(document.documentElement), pen = canvas.getContext('2d');
    const colours = SHADES.map((name) => style.getPropertyValue(name));
    pen.scale(scale, scale);
    pen.font = (row > 10 ? 11 : 9) + 'px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    const text = style.getPropertyValue('--faint'), line = style.getPropertyValue('--line');
    order.forEach((thread, at) => {
      pen.fillStyle = text;
      pen.fillText(data.threads[thread][0], 12, at * row + row / 2, LABEL - 16);
      pen.fillStyle = line;
      pen.fillRect(LABEL, (at + 1) * row - 1, width(), 1);
      for (let when = 0; when < slices; when++) {
        const sums = done.get(thread * slices + when);
        if (!sums) continue;
        const left = LABEL + Math.floor(when * width() / slices), right = LABEL + Math.ceil((when + 1) * width() / slices);
        const all = Math.max(full, sums.reduce((a, b) => a + b, 0));
        let foot = (at + 1) * row - 1;
        sums.forEach((sum, activity) => {
          const tall = sum / all * (row - 2);
          pen.fillStyle = colours[activity];
          pen.fillRect(left, foot -= tall, right - left, tall);
        });
      }
    });
    mark();
    const ticks = $('tick');
    ticks.textContent = clock || slices > 1 ? `0 to ${seconds(slices).toFixed(digits)} s; drag to choose a part` : '';
  }
  function mark() {
    const range = page.range(), bar = $('range');
    bar.style.display = range ? 'block' : 'none';
    $('whole').disabled = !range;
    const [from, to] = range || [0, slices];
    bar.style.left = LABEL + from * width() / slices + 'px';
    bar.style.width = (to - from) * width() / slices + 'px';
    if (document.activeElement !== $('from')) $('from').value = seconds(from).toFixed(digits);
    if (document.activeElement !== $('to')) $('to').value = seconds(to).toFixed(digits);
  }
  const at = (event) => Math.min(slices, Math.max(0, (event.clientX - canvas.getBoundingClientRect().left - LABEL) / width() * slices));
  let begin = -1;
  canvas.addEventListener('pointerdown', (event) => {
    if (event.offsetX < LABEL) return page.chooseThread(order[Math.floor(event.offsetY / row)]);
    begin = at(event);
    canvas.setPointerCapture(event.pointerId);
  });
  const drag = (event, done) => {
    if (begin < 0) return;
    const end = at(event), from = Math.floor(Math.min(begin, end)), to = Math.ceil(Math.max(begin, end));
    const few = Math.abs(end - begin) * width() / slices < 3;
    if (done) { begin = -1; page.chooseRange(few ? null : [from, to]); } else page.previewRange(few ? null : [from, to]);
  };
  canvas.addEventListener('pointermove', (event) => drag(event, false));
  canvas.addEventListener('pointerup', (event) => drag(event, true));
  for (const name of ['from', 'to']) {
    $(name).addEventListener('change', () => {
      const [from, to] = ['from', 'to'].map((id) => Math.min(slices, Math.max(0, Math.round(Number($(id).value) * 1e9 / slice))));
      page.chooseRange(from < to && (from || to < slices) ? [from, to] : null);
    });
  }
  $('whole').addEventListener('click', () => page.chooseRange(null));
  return { draw, mark };
}

function pictures(page) {
  const { data, $, element } = page;
  let inverted = false, upwards = false, isUnfolded = false, root = null, zoomed = null;
  const openRows = new Set();
  const name = (f) => (f === -2 ? 'all' : f < 0 ? '(many light calls)' : page.nameOf(f));
  const kind = (f) => (f < 0 ? 'none' : data.functions[f].kind);
  const below = (node) => [...node.below.values()].sort((a, b) => b.total - a.total);
  const pathOf = (node) => (node.up ? [...pathOf(node.up), node.f] : []);
  const found = (node) => { const wanted = page.wanted(); return wanted && node.f >= 0 && data.functions[node.f].name.toLowerCase().includes(wanted); };

  function show() {
    const path = zoomed ? pathOf(zoomed) : [];
    root = page.stacks.tree(page.chosen(), inverted);
    zoomed = path.reduce((node, f) => node && node.below.get(f), root) || root;
    drawn = '';
    draw();
  }
  let drawn = '';
  function draw() {
    const view = page.viewed();
    if (drawn === view) return;
    drawn = view;
    if (view === 'flame') flame();
    if (view === 'tree') tree();
    if (view === 'balance') balance();
  }

  // --- flame graph
  // --------------------------------------------------------------------------------------------------------

  function flame() {
    const graph = $('graph'), wide = graph.clientWidth || 1000, ROW = 17, boxes = document.createDocumentFragment();
    let deepest = 0, matched = 0;
    const box = (node, x, w, depth, inFound) => {
      if (w < 1) return;
      deepest = Math.max(deepest, depth);
      const made = element('div', 'box ' + kind(node.f), w > 24 ? name(node.f) : undefined);
      made.style.cssText = `left:${x}px;width:${Math.max(1, w - 0.5)}px;`;
      made.dataset.depth = depth;
      made.node = node;
      const isFound = found(node);
      if (isFound) { made.classList.add('found'); if (!inFound) matched += node.total; }
      boxes.append(made);
      let left = x;
      for (const child of below(node)) {
        const part = w * child.total / node.total;
        box(child, left, part, depth + 1, inFound || isFound);
        left += part;
      }
    };
    box(zoomed, 0, wide, 0, false);
    for (const made of boxes.children) made.style.top = (upwards ? deepest - made.dataset.depth : made.dataset.depth) * ROW + 'px';
    graph.style.height = (deepest + 1) * ROW + 'px';
    graph.replaceChildren(boxes);
    const path = [];
    for (let node = zoomed; node; node = node.up) path.unshift(node);
    $('path').replaceChildren(...path.map((node) => {
      const step = element('button', '', name(node.f));
      step.addEventListener('click', () => zoom(node));
      return step;
    }));
    about(zoomed);
    if (page.wanted()) $('hits').textContent = page.percent(matched);
  }
  function zoom(node) { zoomed = node; drawn = ''; draw(); }
  function about(node) {
    const own = inverted ? '' : `, self ${page.amount(node.own)}`;
    $('about').textContent = `${node.f >= 0 ? data.functions[node.f].name : name(node.f)}: ${page.amount(node.total)}, ${page.percent(node.total)}${own}`;
  }
  $('graph').addEventListener('click', (event) => { if (event.target.node) zoom(event.target.node); });
  $('graph').addEventListener('mousemove', (event) => { if (event.target.node) about(event.target.node); });
  $('graph').addEventListener('dblclick', (event) => { if (event.target.node && event.target.node.f >= 0) page.goToFunction(event.target.node.f); });

  // --- call tree
  // ----------------------------------------------------------------------------------------------------------

  function tree() {
    const rows = document.createDocumentFragment(), least = page.all() / 2000;
    let matched = 0;
    const draw = (node, depth, key) => {
      const children = below(node).filter((child) => child.total >= least), isOpen = openRows.has(key);
      const row = element('button', 'leafless');
      row.className = 'treerow' + (found(node) ? ' found' : '');
      row.setAttribute('role', 'treeitem');
      row.setAttribute('aria-level', depth + 1);
      if (children.length) row.setAttribute('aria-expanded', isOpen);
      row.dataset.key = key;
      row.node = node;
      const text = element('span', 'text');
      text.style.paddingLeft = depth * 14 + 'px';
      text.append(element('span', 'sign', children.length ? (isOpen ? '▾' : '▸') : ''), element('span', 'dot ' + kind(node.f)), name(node.f));
      row.append(element('span', 'number', page.amount(node.total)), page.share(node.total, 'number'), page.share(inverted ? null : node.own, 'number'), text);
      row.title = node.f >= 0 ? data.functions[node.f].name : '';
      rows.append(row);
      if (found(node)) matched++;
      if (isOpen) for (const child of children) draw(child, depth + 1, key + '/' + child.f);
    };
    if (!isUnfolded) openHot(root, '');
    isUnfolded = true;
    draw(root, 0, '');
    const head = element('div', 'treerow head');
    head.append(element('span', 'number', page.unit), element('span', 'number', 'total'), element('span', 'number', inverted ? '' : 'self'), element('span', 'text', inverted ? 'function, below it its callers' : 'function, below it what it calls'));
    $('treerows').replaceChildren(head, rows);
    if (page.wanted()) $('hits').textContent = matched + ' rows';
  }
  /** Down to where the time is. */
  function openHot(node, key) {
    openRows.add(key);
    const [first] = below(node);
    if (!inverted && first && first.total > page.all() / 20) openHot(first, key + '/' + first.f);
  }
  /** What is looked for is unfolded. */
  function openFound(node, key) {
    let any = false;
    for (const child of node.below.values()) {
      if (child.total >= page.all() / 2000 && openFound(child, key + '/' + child.f)) any = true;
    }
    if (any) openRows.add(key);
    return any || found(node);
  }
  $('treerows').addEventListener('click', (event) => {
    const row = event.target.closest('button.treerow');
    if (!row) return;
    const { key } = row.dataset;
    if (!openRows.delete(key)) openRows.add(key);
    tree();
    const again = [...document.querySelectorAll('button.treerow')].find((one) => one.dataset.key === key);
    if (again) again.focus();
  });
  $('treerows').addEventListener('dblclick', (event) => {
    const row = event.target.closest('button.treerow');
    if (row && row.node.f >= 0) page.goToFunction(row.node.f);
  });

  // --- threads
  // ------------------------------------------------------------------------------------------------------------

  function balance() {
    const view = $('balance'), chosen = page.chosen(), sum = (parts) => parts.reduce((a, b) => a + b, 0);
    const threads = chosen.threads.map((parts, at) => [at, sum(parts), parts]).filter(([, all]) => all).sort((a, b) => b[1] - a[1]);
    const most = threads.length ? threads[0][1] : 1;
    view.replaceChildren(element('h2', '', 'What each thread did'), ...threads.map(([at, all, parts]) => bar(data.threads[at][0], all, most, parts)));
    const loops = page.stacks.byThread(chosen.range);
    const heaviest = [...loops].map(([f, of]) => [f, [...of].map(([at, { inside, waited }]) => [at, inside, waited]), sum([...of.values()].map((one) => one.inside))]).sort((a, b) => b[2] - a[2]);
    if (heaviest.length) view.append(element('h2', '', 'How parallel loops were shared'));
    for (const [f, of] of heaviest.slice(0, 20)) {
      of.sort((a, b) => b[1] - a[1]);
      const all = sum(of.map(([, weight]) => weight)), mean = all / of.length, idle = (1 - mean / of[0][1]) * 100, most = Math.max(...of.map(([, inside, waited]) => inside + waited));
      const waited = sum(of.map((one) => one[2]));
      const title = element('h3', '', page.nameOf(f));
      title.title = data.functions[f].name;
      view.append(title, element('p', 'faint', of.length === 1 ? `${page.amount(all)} in one thread` : `${page.amount(all)} in ${of.length} threads: ` +
        `busiest ${page.amount(of[0][1])}, mean ${page.amount(mean)}. Equal shares would save ${idle.toFixed(0)} % of the busiest thread's time` +
        (waited ? `. While others were in it, threads waited about ${page.amount(waited)}` : '')));
      for (const [at, inside, waits] of of) {
        const row = bar(data.threads[at][0], inside, most, Object.assign([inside], { [WAITING]: waits }));
        if (waited) row.append(element('span', 'waits', `waited ${page.amount(waits)}`));
        view.append(row);
      }
    }
  }
  function bar(label, all, most, parts) {
    const row = element('div', 'bar'), track = element('span', 'track');
    parts.forEach((part, at) => {
      if (!part) return;
      const piece = element('span', 'piece');
      piece.style.cssText = `width:${part / most * 100}%;background:var(${SHADES[at]})`;
      piece.title = `${data.stacks.activities[at]}: ${page.amount(part)}`;
      track.append(piece);
    });
    row.append(element('span', 'name', label), element('span', 'number', page.amount(all)), track);
    return row;
  }

  function invert() {
    inverted = !inverted;
    zoomed = null;
    openRows.clear();
    isUnfolded = false;
    $('inverted').setAttribute('aria-pressed', inverted);
    show();
  }
  function turn() {
    upwards = !upwards;
    $('upwards').textContent = upwards ? 'flame' : 'icicle';
    drawn = '';
    draw();
  }
  $('inverted').addEventListener('click', invert);
  $('upwards').addEventListener('click', turn);
  function find() { if (page.viewed() === 'tree' && page.wanted()) openFound(root, ''); drawn = ''; draw(); }
  return { show, draw, find, redraw() { drawn = ''; draw(); }, keys: { i: invert, u: turn }, whole() { if (root) zoom(root); } };
}
