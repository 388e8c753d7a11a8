// The loops of a line: a chip beside it, and what opens below: what helps, the facts, the instructions with samples.
function loopViews(page, whose) {
  const { element } = page;
  const COLUMN = 8;
  let shown = false;

  /** Of several compilations of a line, the heaviest loop speaks. */
  function chip(entry) {
    if (!entry || !entry.o) return null;
    const advised = entry.o.some((loop) => loop.advice.length);
    const made = element('button', 'chip' + (advised ? ' advised' : ''), entry.o[0].chip + (advised ? ' ⚑' : ''));
    made.title = entry.o.map((loop) => [loop.name, ...loop.advice.map(([, text]) => text)].join(': ')).join('\n');
    made.tabIndex = -1;
    return made;
  }
  function sections(entry) {
    return (entry.o || []).map((loop) => {
      const section = element('section', 'loop');
      const title = element('h3', '', whose(`${loop.name}${loop.inlined ? ', inlined into' : ' of'} ${page.short(loop.function)}${page.isFiltered() ? '' : ': ' + page.percent(loop.weight)}`));
      title.title = loop.function;
      section.append(title);
      for (const [rule, text] of loop.advice) section.append(element('div', 'advice', `⚑ ${rule}: ${text}`));
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
    const toggle = (wanted) => {
      shown = wanted;
      const pre = section.querySelector('pre');
      if (pre) pre.remove(); else section.append(instructions(loop));
    };
    button.addEventListener('click', () => toggle(!section.querySelector('pre')));
    if (shown) requestAnimationFrame(() => { if (!section.querySelector('pre')) toggle(true); });
    return button;
  }
  function instructions(loop) {
    const pre = element('pre');
    let hottest = null, most = 0;
    for (const [line, weight, text, callee] of loop.code) {
      const share = weight ? (weight / loop.weight * 100).toFixed(1) + ' %' : '';
      const made = element('div', '', `${share.padStart(COLUMN)}  ${String(line || '').padStart(COLUMN - 3)}  ${text}${callee ? '  → ' + page.short(callee) : ''}`);
      if (weight) made.style.background = `rgba(var(--heat), ${(0.5 * Math.sqrt(Math.min(1, weight / loop.weight))).toFixed(3)})`;
      if (weight > most) [hottest, most] = [made, weight];
      pre.append(made);
    }
    if (hottest) hottest.classList.add('hottest');
    return pre;
  }
  return { chip, sections, open() { shown = true; } };
}

