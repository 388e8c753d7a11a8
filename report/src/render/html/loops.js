// Loops of a line: a chip next to it, and a panel with advice, facts, and the instructions with their samples.
function loopViews(page, withScopeNote) {
  const { element } = page;
  const COLUMN = 8;
  let isOpen = false;

  /** Returns the chip of a line: the hottest loop of all compilations, with a flag if any has advice. */
  function chip(entry) {
    if (!entry || !entry.o) return null;
    const advised = entry.o.some((loop) => loop.advice.some(([, , mark]) => mark === '⚑'));
    const button = element('button', 'chip' + (advised ? ' advised' : ''), entry.o[0].chip + (advised ? ' ⚑' : ''));
    button.title = entry.o.map((loop) => [loop.name, ...loop.advice.map(([, text]) => text)].join(': ')).join('\n');
    button.tabIndex = -1;
    return button;
  }
  function sections(entry) {
    return (entry.o || []).map((loop) => {
      const section = element('section', 'loop');
      const title = element('h3', '', withScopeNote(`${loop.name}${loop.inlined ? ', inlined into' : ' of'} ${page.shortName(loop.function)}${page.isFiltered() ? '' : ': ' + page.percent(loop.weight)}`));
      title.title = loop.function;
      section.append(title);
      for (const [rule, text, mark] of loop.advice) section.append(element('div', 'advice', `${mark} ${rule}: ${text}`));
      const table = element('table');
      for (const [name, text] of loop.rows) {
        const row = element('tr');
        row.append(element('td', 'faint', name), element('td', '', text));
        table.append(row);
      }
      section.append(table, code(section, loop));
      return section;
    });
  }
  function code(section, loop) {
    const button = element('button', 'link', 'assembly of this loop');
    const toggle = (isWanted) => {
      isOpen = isWanted;
      const pre = section.querySelector('pre');
      if (pre) pre.remove(); else section.append(instructions(loop));
    };
    button.addEventListener('click', () => toggle(!section.querySelector('pre')));
    if (isOpen) requestAnimationFrame(() => { if (!section.querySelector('pre')) toggle(true); });
    return button;
  }
  function instructions(loop) {
    const pre = element('pre');
    let hottest = null, maxWeight = 0;
    for (const [line, weight, text, callee] of loop.code) {
      const share = weight ? (weight / loop.weight * 100).toFixed(1) + ' %' : '';
      const row = element('div', '', `${share.padStart(COLUMN)}  ${String(line || '').padStart(COLUMN - 3)}  ${text}${callee ? '  → ' + page.shortName(callee) : ''}`);
      if (weight) row.style.background = `rgba(var(--heat), ${(0.5 * Math.sqrt(Math.min(1, weight / loop.weight))).toFixed(3)})`;
      if (weight > maxWeight) [hottest, maxWeight] = [row, weight];
      pre.append(row);
    }
    if (hottest) hottest.classList.add('hottest');
    return pre;
  }
  return { chip, sections, open() { isOpen = true; } };
}

