// Strip of all processes: one bar for each, stacked by activity. Bars wrap into several rows, so that each of thousands
// of processes keeps its own.
function processes(page) {
  const { data, $, element } = page;
  const MIN_BAR = 3, MAX_BAR = 120, MIN_LABELLED_BAR = 24, LABEL_HEIGHT = 14, LEFT = 110;
  const rows = data.processes, section = $('processes'), canvas = $('processbars'), box = $('processbox'), choice = $('process');
  section.hidden = choice.hidden = rows.length < 2;
  if (section.hidden) return { draw() {} };
  choice.append(new Option('all processes', '-1'), ...rows.map(([name], number) => new Option(name, number)));
  choice.addEventListener('change', () => page.chooseProcess(Number(choice.value)));

  let layout = null, sums = [], hovered = -1;
  function measure() {
    const width = Math.max(100, box.clientWidth - LEFT), lines = Math.ceil(rows.length / Math.floor(width / MIN_BAR));
    const columns = Math.ceil(rows.length / lines), bar = Math.min(MAX_BAR, width / columns);
    const labelled = bar >= MIN_LABELLED_BAR ? LABEL_HEIGHT : 0;
    return { columns, lines, bar, labelled, bars: lines === 1 ? 44 : lines < 4 ? 30 : lines < 8 ? 18 : 12 };
  }
  function draw() {
    const selection = page.selection(), chosen = page.process(), scale = window.devicePixelRatio || 1;
    sums = rows.map(() => data.stacks.activities.map(() => 0));
    selection.threads.forEach((parts, thread) => parts.forEach((weight, activity) => { sums[data.threads[thread][2]][activity] += weight; }));
    const totals = sums.map((parts) => parts.reduce((a, b) => a + b, 0)), most = Math.max(...totals) || 1;
    const mean = totals.reduce((a, b) => a + b, 0) / rows.length;
    layout = measure();
    const { columns, lines, bar, bars, labelled } = layout, rowHeight = bars + labelled + 2;
    canvas.width = box.clientWidth * scale; canvas.height = lines * rowHeight * scale;
    canvas.style.height = lines * rowHeight + 'px';
    const style = getComputedStyle(document.documentElement), pen = canvas.getContext('2d'), colours = SHADES.map((name) => style.getPropertyValue(name));
    const text = style.getPropertyValue('--faint'), line = style.getPropertyValue('--line');
    pen.scale(scale, scale);
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    pen.fillStyle = text;
    pen.fillText(`${page.count(rows.length)} processes`, 12, bars / 2, LEFT - 16);
    totals.forEach((_, process) => {
      const left = LEFT + process % columns * bar, top = Math.floor(process / columns) * rowHeight, width = bar >= 4 ? bar - 1 : bar;
      pen.globalAlpha = chosen < 0 || chosen === process ? 1 : 0.3;
      pen.fillStyle = line;
      pen.fillRect(left, top, width, bars);
      let bottom = top + bars;
      sums[process].forEach((weight, activity) => {
        const height = weight / most * bars;
        pen.fillStyle = colours[activity];
        pen.fillRect(left, bottom -= height, width, height);
      });
      pen.fillStyle = text;
      if (labelled) pen.fillText(rows[process][1], left, top + bars + labelled / 2, width);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = style.getPropertyValue('--text');
    for (let row = 0; row < lines; row++) {
      const length = Math.min(columns, rows.length - row * columns);
      pen.fillRect(LEFT, row * rowHeight + bars * (1 - mean / most), length * bar, 1);
    }
    choice.value = chosen;
    describe(totals, mean);
  }
  function describe(totals, mean) {
    const at = (weight) => rows[totals.indexOf(weight)][0], least = Math.min(...totals), most = Math.max(...totals);
    const words = hovered < 0 ? `least ${page.amount(least)}, ${at(least)}; mean ${page.amount(mean)}; most ${page.amount(most)}, ${at(most)}` :
      `${rows[hovered][0]}: ${page.amount(totals[hovered])}, mean ${page.amount(mean)}`;
    const parts = hovered < 0 ? [] : sums[hovered].map((weight, activity) => [weight, activity]).filter(([weight]) => weight >= totals[hovered] / 100).sort((a, b) => b[0] - a[0]);
    $('processtext').replaceChildren(element('span', '', words), ...parts.map(([weight, activity]) => {
      const part = element('span', 'activity'), colour = element('span', 'colour');
      colour.style.background = `var(${SHADES[activity]})`;
      part.append(colour, `${(weight / totals[hovered] * 100).toFixed(0)} % ${data.stacks.activities[activity]}`);
      return part;
    }));
  }
  function processAt(event) {
    const { columns, bar, bars, labelled } = layout, column = Math.floor((event.offsetX - LEFT) / bar);
    const process = Math.floor(event.offsetY / (bars + labelled + 2)) * columns + column;
    return column >= 0 && column < columns && process < rows.length ? process : -1;
  }
  function hover(process) {
    if (process === hovered) return;
    hovered = process;
    const totals = sums.map((parts) => parts.reduce((a, b) => a + b, 0));
    describe(totals, totals.reduce((a, b) => a + b, 0) / rows.length);
  }
  canvas.addEventListener('mousemove', (event) => hover(processAt(event)));
  canvas.addEventListener('mouseleave', () => hover(-1));
  canvas.addEventListener('click', (event) => { const process = processAt(event); if (process >= 0) page.chooseProcess(process); });
  return { draw };
}
