// Table of Numba's compilations: start, duration, caller and reason.
function compilations(page) {
  const { data, $, element } = page, { rows, words, left_out: leftOut } = data.compiling, { slice } = data.stacks;
  let order = 'took';
  const time = (ns) => (ns < 1e9 ? (ns / 1e6).toFixed(0) + ' ms' : (ns / 1e9).toFixed(2) + ' s');
  const size = (bytes) => (bytes < 1000 ? bytes + ' B' : (bytes / 1000).toFixed(1) + ' KB');
  const isInRange = (row, range) => !range || (row.when < range[1] * slice && row.when + row.lasted >= range[0] * slice);
  /** Returns a click handler that jumps to the function's line, or null if the page does not contain that line. */
  function lineAction(row) {
    const file = data.files.findIndex((candidate) => candidate.path === row.file);
    const lines = file < 0 ? [] : Object.keys(data.files[file].lines).map(Number);
    return lines.length ? () => page.goToLine(file, lines.find((line) => line >= row.line) || lines[lines.length - 1]) : null;
  }
  function show() {
    const range = page.range(), shown = rows.filter((row) => isInRange(row, range));
    if (order === 'took') {
      // A compilation stays with those inside it: rows are in the order of their begin.
      const outermost = new Map(), last = new Map();
      for (const row of shown) {
        const thread = row.host + ':' + row.pid + ':' + row.tid;
        if (!row.depth || !last.has(thread)) last.set(thread, row);
        outermost.set(row, last.get(thread));
      }
      const order = new Map(shown.map((row, number) => [row, number]));
      shown.sort((a, b) => outermost.get(b).took - outermost.get(a).took || order.get(outermost.get(a)) - order.get(outermost.get(b)) || order.get(a) - order.get(b));
    }
    $('compiled').tBodies[0].replaceChildren(...shown.map((row) => {
      const tr = element('tr'), addCell = (text, className, title) => { const td = element('td', className, text); if (title) td.title = title; tr.append(td); };
      addCell(time(row.when), 'n');
      addCell(time(row.took), 'n', time(row.lasted) + ' by the clock');
      for (const part of [row.took - row.llvm, row.llvm]) addCell(row.cached ? '' : time(part), 'n');
      addCell(row.cached || !row.size ? '' : size(row.size), 'n');
      addCell('', 'what', `${row.function} (${row.file}:${row.line})`);
      tr.lastChild.append(element('code', row.cached ? 'faint' : '', row.function));
      tr.lastChild.style.paddingLeft = 8 + Math.min(row.depth, 4) * 14 + 'px';
      addCell('', '', row.signature);
      tr.lastChild.append(element('code', 'faint', row.signature));
      addCell(row.for, 'faint', row.caller || '');
      const action = lineAction(row);
      if (action) { tr.className = 'goes'; tr.addEventListener('click', action); }
      return tr;
    }));
    $('compiledwords').textContent = words + (leftOut ? `; the ${page.count(leftOut)} shortest are not listed here` : '') + '.';
    for (const head of document.querySelectorAll('#compiled th[data-order]')) head.setAttribute('aria-sort', head.dataset.order === order ? 'descending' : 'none');
  }
  for (const head of document.querySelectorAll('#compiled th[data-order] button')) {
    head.addEventListener('click', () => { order = head.parentElement.dataset.order; show(); });
  }
  document.querySelector('#tabs [data-view=compilations]').hidden = !rows.length;
  return { show, hasRows: rows.length > 0 };
}
