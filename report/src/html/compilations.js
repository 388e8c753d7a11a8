// What Numba compiled: when, how long, for whom and why.
function compilations(page) {
  const { data, $, element } = page, { rows, words, left_out: leftOut } = data.compiling, { slice } = data.stacks;
  let order = 'when';
  const time = (ns) => (ns < 1e9 ? (ns / 1e6).toFixed(0) + ' ms' : (ns / 1e9).toFixed(2) + ' s');
  const size = (bytes) => (bytes < 1000 ? bytes + ' B' : (bytes / 1000).toFixed(1) + ' KB');
  const isChosen = (row, range) => !range || (row.when < range[1] * slice && row.when + row.lasted >= range[0] * slice);
  /** To the line of the function, where the page has it. */
  function go(row) {
    const file = data.files.findIndex((one) => one.path === row.file);
    const lines = file < 0 ? [] : Object.keys(data.files[file].lines).map(Number);
    return lines.length ? () => page.goToLine(file, lines.find((line) => line >= row.line) || lines[lines.length - 1]) : null;
  }
  function show() {
    const range = page.range(), shown = rows.filter((row) => isChosen(row, range));
    if (order === 'took') shown.sort((a, b) => b.took - a.took);
    $('compiled').tBodies[0].replaceChildren(...shown.map((row) => {
      const made = element('tr'), cell = (text, className, title) => { const td = element('td', className, text); if (title) td.title = title; made.append(td); };
      cell(time(row.when), 'n');
      cell(time(row.took), 'n', time(row.lasted) + ' by the clock');
      for (const part of [row.took - row.llvm, row.llvm]) cell(row.cached ? '' : time(part), 'n');
      cell(row.cached || !row.size ? '' : size(row.size), 'n');
      cell('', 'what', `${row.function} (${row.file}:${row.line})`);
      made.lastChild.append(element('code', row.cached ? 'faint' : '', row.function));
      made.lastChild.style.paddingLeft = 8 + (order === 'when' ? Math.min(row.depth, 4) * 14 : 0) + 'px';
      cell('', '', row.signature);
      made.lastChild.append(element('code', 'faint', row.signature));
      cell(row.for, 'faint', row.caller || '');
      const action = go(row);
      if (action) { made.className = 'goes'; made.addEventListener('click', action); }
      return made;
    }));
    $('compiledwords').textContent = words + (leftOut ? `; the ${page.count(leftOut)} shortest are not listed here` : '') + '.';
    for (const head of document.querySelectorAll('#compiled th[data-order]')) head.setAttribute('aria-sort', head.dataset.order === order ? 'descending' : 'none');
  }
  for (const head of document.querySelectorAll('#compiled th[data-order] button')) {
    head.addEventListener('click', () => { order = head.parentElement.dataset.order; show(); });
  }
  document.querySelector('#tabs [data-view=compilations]').hidden = !rows.length;
  return { show, any: rows.length > 0 };
}
