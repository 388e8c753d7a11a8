// Timeline, flame graph, call tree and threads.
const SHADES = ['--a0', '--a1', '--a2', '--a3', '--a4', '--a5', '--a6', '--a7', '--a8', '--a9'];

// Number of threads that the timeline and the list of threads show.
const MAX_THREADS = 300;

function timeline(page) {
  const { data, $ } = page;
  const { slice, slices, clock } = data.stacks, LABEL = 110, canvas = $('canvas'), box = $('threads');
  const threads = data.threads.map((_, thread) => thread).filter((thread) => data.threads[thread][1] || !data.weight);
  threads.sort((a, b) => data.threads[b][1] - data.threads[a][1]);
  // Threads of the chosen process.
  let order = [], rowHeight = 0;
  // Weight of each activity by thread and time slice.
  const weights = new Map();
  let maxWeight = 0;
  for (let offset = 0; offset < data.stacks.parts.length; offset += PART_FIELDS) {
    const parts = data.stacks.parts, key = parts[offset + 1] * slices + parts[offset];
    if (!weights.has(key)) weights.set(key, data.stacks.activities.map(() => 0));
    weights.get(key)[parts[offset + 3]] += page.stacks.amount(offset);
  }
  for (const sums of weights.values()) maxWeight = Math.max(maxWeight, sums.reduce((a, b) => a + b, 0));
  // The row of a thread that always runs is full. A slice may be shorter than the period of a sample in it.
  const rowWeight = clock ? Math.min(maxWeight, slice) || 1 : maxWeight || 1;
  const seconds = (slicePosition) => slicePosition * slice / 1e9, digits = Math.max(2, Math.ceil(9 - Math.log10(slice)));
  const width = () => Math.max(100, box.clientWidth - LABEL);

  $('from').max = $('to').max = seconds(slices);
  function draw() {
    const inProcess = threads.filter((thread) => page.process() < 0 || data.threads[thread][2] === page.process());
    order = inProcess.slice(0, MAX_THREADS);
    rowHeight = order.length > 8 ? 9 : order.length > 4 ? 16 : 20;
    const scale = window.devicePixelRatio || 1, boxWidth = box.clientWidth, boxHeight = order.length * rowHeight;
    canvas.width = boxWidth * scale; canvas.height = boxHeight * scale;
    canvas.style.height = boxHeight + 'px';
    const style = getComputedStyle(document.documentElement), pen = canvas.getContext('2d');
    const colours = SHADES.map((name) => style.getPropertyValue(name));
    pen.scale(scale, scale);
    pen.font = (rowHeight > 10 ? 11 : 9) + 'px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    const text = style.getPropertyValue('--faint'), line = style.getPropertyValue('--line');
    order.forEach((thread, rowIndex) => {
      pen.fillStyle = text;
      pen.fillText(data.threads[thread][0], 12, rowIndex * rowHeight + rowHeight / 2, LABEL - 16);
      pen.fillStyle = line;
      pen.fillRect(LABEL, (rowIndex + 1) * rowHeight - 1, width(), 1);
      for (let sliceIndex = 0; sliceIndex < slices; sliceIndex++) {
        const sums = weights.get(thread * slices + sliceIndex);
        if (!sums) continue;
        const left = LABEL + Math.floor(sliceIndex * width() / slices), right = LABEL + Math.ceil((sliceIndex + 1) * width() / slices);
        const all = Math.max(rowWeight, sums.reduce((a, b) => a + b, 0));
        let bottom = (rowIndex + 1) * rowHeight - 1;
        sums.forEach((sum, activity) => {
          const barHeight = sum / all * (rowHeight - 2);
          pen.fillStyle = colours[activity];
          pen.fillRect(left, bottom -= barHeight, right - left, barHeight);
        });
      }
    });
    mark();
    const tick = $('tick');
    tick.textContent = (clock || slices > 1 ? `0 to ${seconds(slices).toFixed(digits)} s; drag to choose a part` : '') +
      (order.length < inProcess.length ? `; the busiest ${order.length} of ${page.count(inProcess.length)} threads` : '');
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
  const sliceAt = (event) => Math.min(slices, Math.max(0, (event.clientX - canvas.getBoundingClientRect().left - LABEL) / width() * slices));
  let dragStart = -1;
  canvas.addEventListener('pointerdown', (event) => {
    if (event.offsetX < LABEL) return page.chooseThread(order[Math.floor(event.offsetY / rowHeight)]);
    dragStart = sliceAt(event);
    canvas.setPointerCapture(event.pointerId);
  });
  const drag = (event, isEnd) => {
    if (dragStart < 0) return;
    const end = sliceAt(event), from = Math.floor(Math.min(dragStart, end)), to = Math.ceil(Math.max(dragStart, end));
    const isClick = Math.abs(end - dragStart) * width() / slices < 3;
    if (isEnd) { dragStart = -1; page.chooseRange(isClick ? null : [from, to]); } else page.previewRange(isClick ? null : [from, to]);
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
  let isInverted = false, isUpwards = false, isUnfolded = false, root = null, zoomed = null;
  const openRows = new Set();
  const nameOf = (f) => (f === -2 ? 'all' : f === COMPILER ? 'compiling' : f < 0 ? '(many light calls)' : page.nameOf(f));
  const kindOf = (f) => (f === COMPILER ? 'compiling' : f < 0 ? 'none' : data.functions[f].kind);
  const sortedChildren = (node) => [...node.below.values()].sort((a, b) => b.total - a.total);
  const pathOf = (node) => (node.up ? [...pathOf(node.up), node.f] : []);
  const isMatch = (node) => { const wanted = page.wanted(); return wanted && node.f >= 0 && data.functions[node.f].name.toLowerCase().includes(wanted); };

  function show() {
    const path = zoomed ? pathOf(zoomed) : [];
    root = page.stacks.tree(page.selection(), isInverted);
    zoomed = path.reduce((node, f) => node && node.below.get(f), root) || root;
    drawnView = '';
    draw();
  }
  let drawnView = '';
  function draw() {
    const view = page.viewed();
    if (drawnView === view) return;
    drawnView = view;
    if (view === 'flame') drawFlame();
    if (view === 'tree') drawTree();
    if (view === 'balance') drawBalance();
  }

  // Flame graph.

  function drawFlame() {
    const graph = $('graph'), graphWidth = graph.clientWidth || 1000, ROW = 17, boxes = document.createDocumentFragment();
    let deepest = 0, matched = 0;
    const box = (node, x, boxWidth, depth, inFound) => {
      if (boxWidth < 1) return;
      deepest = Math.max(deepest, depth);
      const boxElement = element('div', 'box ' + kindOf(node.f), boxWidth > 24 ? nameOf(node.f) : undefined);
      boxElement.style.cssText = `left:${x}px;width:${Math.max(1, boxWidth - 0.5)}px;`;
      boxElement.dataset.depth = depth;
      boxElement.node = node;
      const isFound = isMatch(node);
      if (isFound) { boxElement.classList.add('found'); if (!inFound) matched += node.total; }
      boxes.append(boxElement);
      let left = x;
      for (const child of sortedChildren(node)) {
        const childWidth = boxWidth * child.total / node.total;
        box(child, left, childWidth, depth + 1, inFound || isFound);
        left += childWidth;
      }
    };
    box(zoomed, 0, graphWidth, 0, false);
    for (const boxElement of boxes.children) boxElement.style.top = (isUpwards ? deepest - boxElement.dataset.depth : boxElement.dataset.depth) * ROW + 'px';
    graph.style.height = (deepest + 1) * ROW + 'px';
    graph.replaceChildren(boxes);
    const path = [];
    for (let node = zoomed; node; node = node.up) path.unshift(node);
    $('path').replaceChildren(...path.map((node) => {
      const step = element('button', '', nameOf(node.f));
      step.addEventListener('click', () => zoom(node));
      return step;
    }));
    describe(zoomed);
    if (page.wanted()) $('hits').textContent = page.percent(matched);
  }
  function zoom(node) { zoomed = node; drawnView = ''; draw(); }
  function describe(node) {
    const own = isInverted ? '' : `, self ${page.amount(node.own)}`;
    $('about').textContent = `${node.f >= 0 ? data.functions[node.f].name : nameOf(node.f)}: ${page.amount(node.total)}, ${page.percent(node.total)}${own}`;
  }
  $('graph').addEventListener('click', (event) => { if (event.target.node) zoom(event.target.node); });
  $('graph').addEventListener('mousemove', (event) => { if (event.target.node) describe(event.target.node); });
  $('graph').addEventListener('dblclick', (event) => { if (event.target.node && event.target.node.f >= 0) page.goToFunction(event.target.node.f); });

  // Call tree.

  function drawTree() {
    const rows = document.createDocumentFragment(), minWeight = page.all() / 2000;
    let matched = 0;
    const drawRow = (node, depth, key) => {
      const children = sortedChildren(node).filter((child) => child.total >= minWeight), isOpen = openRows.has(key);
      const row = element('button', 'leafless');
      row.className = 'treerow' + (isMatch(node) ? ' found' : '');
      row.setAttribute('role', 'treeitem');
      row.setAttribute('aria-level', depth + 1);
      if (children.length) row.setAttribute('aria-expanded', isOpen);
      row.dataset.key = key;
      row.node = node;
      const text = element('span', 'text');
      text.style.paddingLeft = depth * 14 + 'px';
      text.append(element('span', 'sign', children.length ? (isOpen ? '▾' : '▸') : ''), element('span', 'dot ' + kindOf(node.f)), nameOf(node.f));
      row.append(element('span', 'number', page.amount(node.total)), page.share(node.total, 'number'), page.share(isInverted ? null : node.own, 'number'), text);
      row.title = node.f >= 0 ? data.functions[node.f].name : '';
      rows.append(row);
      if (isMatch(node)) matched++;
      if (isOpen) for (const child of children) drawRow(child, depth + 1, key + '/' + child.f);
    };
    if (!isUnfolded) openHot(root, '');
    isUnfolded = true;
    drawRow(root, 0, '');
    const head = element('div', 'treerow head');
    head.append(element('span', 'number', page.unit), element('span', 'number', 'total'), element('span', 'number', isInverted ? '' : 'self'), element('span', 'text', isInverted ? 'function, below it its callers' : 'function, below it what it calls'));
    $('treerows').replaceChildren(head, rows);
    if (page.wanted()) $('hits').textContent = matched + ' rows';
  }
  /** Unfolds the path to the hottest function. */
  function openHot(node, key) {
    openRows.add(key);
    const [first] = sortedChildren(node);
    if (!isInverted && first && first.total > page.all() / 20) openHot(first, key + '/' + first.f);
  }
  /** Unfolds the rows that match the search. */
  function openFound(node, key) {
    let hasMatch = false;
    for (const child of node.below.values()) {
      if (child.total >= page.all() / 2000 && openFound(child, key + '/' + child.f)) hasMatch = true;
    }
    if (hasMatch) openRows.add(key);
    return hasMatch || isMatch(node);
  }
  $('treerows').addEventListener('click', (event) => {
    const row = event.target.closest('button.treerow');
    if (!row) return;
    const { key } = row.dataset;
    if (!openRows.delete(key)) openRows.add(key);
    drawTree();
    const redrawnRow = [...document.querySelectorAll('button.treerow')].find((row) => row.dataset.key === key);
    if (redrawnRow) redrawnRow.focus();
  });
  $('treerows').addEventListener('dblclick', (event) => {
    const row = event.target.closest('button.treerow');
    if (row && row.node.f >= 0) page.goToFunction(row.node.f);
  });

  // Threads.

  function drawBalance() {
    const view = $('balance'), selection = page.selection(), sum = (parts) => parts.reduce((a, b) => a + b, 0);
    const threads = selection.threads.map((parts, thread) => [thread, sum(parts), parts]).filter(([thread, total]) => total && (page.process() < 0 || page.isChosen(thread))).sort((a, b) => b[1] - a[1]);
    const maxTime = threads.length ? threads[0][1] : 1, left = threads.splice(MAX_THREADS).length;
    view.replaceChildren(element('h2', '', 'What each thread did'), ...threads.map(([thread, total, parts]) => bar(data.threads[thread][0], total, maxTime, parts)));
    if (left) view.append(element('p', 'faint', `${page.count(left)} more threads`));
    const loops = page.stacks.byThread(selection.range);
    const heaviest = [...loops].map(([f, byThread]) => [f, [...byThread].map(([thread, { inside, waited }]) => [thread, inside, waited]), sum([...byThread.values()].map((times) => times.inside))]).sort((a, b) => b[2] - a[2]);
    if (heaviest.length) view.append(element('h2', '', 'How parallel loops were shared'));
    for (const [f, rows] of heaviest.slice(0, 20)) {
      rows.sort((a, b) => b[1] - a[1]);
      const total = sum(rows.map(([, weight]) => weight)), mean = total / rows.length, saving = (1 - mean / rows[0][1]) * 100, maxTime = Math.max(...rows.map(([, inside, waited]) => inside + waited));
      const waited = sum(rows.map((row) => row[2]));
      const title = element('h3', '', page.nameOf(f));
      title.title = data.functions[f].name;
      view.append(title, element('p', 'faint', rows.length === 1 ? `${page.amount(total)} in one thread` : `${page.amount(total)} in ${rows.length} threads: ` +
        `busiest ${page.amount(rows[0][1])}, mean ${page.amount(mean)}. Equal shares would save ${saving.toFixed(0)} % of the busiest thread's time` +
        (waited ? `. While others were in it, threads waited about ${page.amount(waited)}` : '')));
      for (const [thread, inside, waitedHere] of rows) {
        const row = bar(data.threads[thread][0], inside, maxTime, Object.assign([inside], { [WAITING]: waitedHere }));
        if (waited) row.append(element('span', 'waits', `waited ${page.amount(waitedHere)}`));
        view.append(row);
      }
    }
  }
  function bar(label, total, maxTime, parts) {
    const row = element('div', 'bar'), track = element('span', 'track');
    parts.forEach((part, activity) => {
      if (!part) return;
      const piece = element('span', 'piece');
      piece.style.cssText = `width:${part / maxTime * 100}%;background:var(${SHADES[activity]})`;
      piece.title = `${data.stacks.activities[activity]}: ${page.amount(part)}`;
      track.append(piece);
    });
    row.append(element('span', 'name', label), element('span', 'number', page.amount(total)), track);
    return row;
  }

  function invert() {
    isInverted = !isInverted;
    zoomed = null;
    openRows.clear();
    isUnfolded = false;
    $('inverted').setAttribute('aria-pressed', isInverted);
    show();
  }
  function toggleDirection() {
    isUpwards = !isUpwards;
    $('upwards').textContent = isUpwards ? 'flame' : 'icicle';
    drawnView = '';
    draw();
  }
  $('inverted').addEventListener('click', invert);
  $('upwards').addEventListener('click', toggleDirection);
  function find() { if (page.viewed() === 'tree' && page.wanted()) openFound(root, ''); drawnView = ''; draw(); }
  return { show, draw, find, redraw() { drawnView = ''; draw(); }, keys: { i: invert, u: toggleDirection }, whole() { if (root) zoom(root); } };
}
