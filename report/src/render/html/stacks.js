'use strict';
// Totals of samples for a selection: threads (null for all) and a range of time slices (from, to; null for all). This
// file does not access the page.
const PART_FIELDS = 8, LEAF_FIELDS = 5;
const COMPILED = 0, INTERPRETED = 1, LIBRARY = 2, COMPILING = 3, IMPORTING = 4, COLLECTING = 5, WAITING = 6, FIRST_USE = 7, LOADING = 8, ENDING = 9;
// Function number of Numba's compiler in the call tree, where it is one frame. -1 are functions that were merged, -2 is the root.
const COMPILER = -3;
const NO_SHARES = [0, 0, 0, 0];

class Stacks {
  constructor(data) {
    const { spots, nodes, parts } = data.stacks;
    Object.assign(this, { data, parts, count: nodes.length / 2 });
    const { count } = this;
    this.parent = new Int32Array(count); this.spot = new Int32Array(count);
    const path = [];
    for (let node = 0; node < count; node++) {
      const depth = nodes[node * 2];
      this.parent[node] = depth ? path[depth - 1] : -1;
      this.spot[node] = nodes[node * 2 + 1];
      path[depth] = node;
    }
    // Function and line index of each distinct frame.
    this.functionOf = []; this.lineOf = []; this.isEntry = []; this.places = [];
    const indices = new Map();
    for (let offset = 0; offset < spots.length; offset += 4) {
      const key = spots[offset + 1] + ':' + spots[offset + 2];
      this.functionOf.push(spots[offset]);
      this.isEntry.push(spots[offset + 3]);
      if (spots[offset + 1] < 0) { this.lineOf.push(-1); continue; }
      if (!indices.has(key)) { indices.set(key, this.places.length); this.places.push([spots[offset + 1], spots[offset + 2]]); }
      this.lineOf.push(indices.get(key));
    }
    this.lineNumbers = indices;
    // Owner of each node: the innermost Python or compiled function. Time in C functions is charged to the owner's line.
    this.owner = new Int32Array(count).fill(-1);
    this.ownerIsPython = new Uint8Array(count);
    // Innermost line of the user's code at or above each node.
    this.user = new Int32Array(count).fill(-1);
    for (let node = 1; node < count; node++) {
      const line = this.lineOf[this.spot[node]];
      this.user[node] = line >= 0 && !data.files[this.places[line][0]].library ? line : this.user[this.parent[node]];
      const f = this.functionOf[this.spot[node]], kind = f < 0 ? '' : data.functions[f].kind, up = this.parent[node];
      const isOwner = kind === 'compiled' || kind === 'python';
      this.owner[node] = isOwner ? node : f < 0 ? -1 : this.owner[up];
      this.ownerIsPython[node] = isOwner ? kind === 'python' && this.lineOf[this.spot[node]] >= 0 : this.owner[node] >= 0 && this.ownerIsPython[up];
    }
  }

  /** Returns everything that the page shows for a selection. `isChosen` tells for each thread whether it is selected. */
  select(isChosen, range) {
    const { data, count, parts } = this, slices = range || [0, Infinity];
    const compiling = new Float64Array(count), own = new Float64Array(count), total = new Float64Array(count), samples = new Float64Array(count), totalSamples = new Float64Array(count);
    const hot = data.stacks.hot.map(() => [0, 0, 0]), activities = data.stacks.activities.map(() => 0), threads = data.threads.map(() => data.stacks.activities.map(() => 0));
    // For each user line: time in or below it, part of that time charged to other lines, and part spent compiling.
    const calling = new Map(), libraries = new Map();
    let all = 0;
    for (let offset = 0; offset < parts.length; offset += PART_FIELDS) {
      if (parts[offset] < slices[0] || parts[offset] >= slices[1]) continue;
      const weight = this.amount(offset), sampled = parts[offset + 1], activity = parts[offset + 3];
      threads[sampled][activity] += weight;
      if (isChosen && !isChosen[sampled]) continue;
      own[parts[offset + 2]] += weight;
      samples[parts[offset + 2]] += parts[offset + 5];
      const code = parts[offset + 4] - 1, line = hot[code >> 1];
      if (line) { line[0] += weight; if (code & 1) line[2] += weight; }
      activities[activity] += weight;
      if (activity === COMPILING) compiling[parts[offset + 2]] += weight;
      all += weight;
      const node = parts[offset + 2], userLine = this.user[node], library = data.lines.libraries[data.lines.leaves[parts[offset + 7] * LEAF_FIELDS + 4]];
      if (library) libraries.set(library, (libraries.get(library) || 0) + weight);
      if (userLine < 0) continue;
      if (!calling.has(userLine)) calling.set(userLine, [0, 0, 0]);
      const sum = calling.get(userLine), hotLine = data.stacks.hot[code >> 1], isOwnLine = line && hotLine[0] === this.places[userLine][0] && hotLine[1] === this.places[userLine][1];
      sum[0] += weight; if (!isOwnLine) sum[1] += weight; if (activity === COMPILING) sum[2] += weight;
    }
    for (let node = count - 1; node >= 0; node--) {
      total[node] += own[node]; totalSamples[node] += samples[node];
      if (node) { total[this.parent[node]] += total[node]; totalSamples[this.parent[node]] += totalSamples[node]; }
    }
    const n = { own, samples, total, totalSamples }, lines = this.shares(n, this.lineOf, this.places.length), isPart = isChosen || range;
    data.stacks.hot.forEach(([file, line], index) => {
      const sum = lines[this.lineNumbers.get(file + ':' + line)];
      hot[index][1] = Math.max(hot[index][0], sum ? sum[3] : 0);
    });
    return { range, all, own, total, compiling, activities, threads, hot, calling, libraries, lines: isPart ? lines : null,
      functions: isPart ? this.shares(n, this.functionOf, data.functions.length) : null };
  }

  /** Returns the weight of a part in ns or events, or its samples if the recording has no periods. */
  amount(offset) { return this.data.weight ? this.parts[offset + 6] : this.parts[offset + 5]; }

  /** Returns self and total of each line or function. Recursion counts once per stack. */
  shares(n, keyOf, length) {
    const shares = Array.from({ length }, () => null), path = [], onPath = new Int32Array(length);
    for (let node = 1; node < this.count; node++) {
      while (path.length && path[path.length - 1] !== this.parent[node]) {
        const leftKey = keyOf[this.spot[path.pop()]];
        if (leftKey >= 0) onPath[leftKey]--;
      }
      path.push(node);
      const key = keyOf[this.spot[node]];
      // The C functions that an interpreted line calls are part of its self time.
      if (n.own[node] && this.ownerIsPython[node] && this.owner[node] !== node && this.lineOf[this.spot[node]] < 0) {
        const caller = keyOf[this.spot[this.owner[node]]], sum = shares[caller] || (shares[caller] = [0, 0, 0, 0]);
        if (caller !== key) { sum[0] += n.samples[node]; sum[1] += n.own[node]; }
      }
      if (key < 0) continue;
      if (n.total[node]) {
        const sum = shares[key] || (shares[key] = [0, 0, 0, 0]);
        sum[0] += n.samples[node]; sum[1] += n.own[node];
        if (!onPath[key]) { sum[2] += n.totalSamples[node]; sum[3] += n.total[node]; }
      }
      onPath[key]++;
    }
    return shares;
  }

  /**
   * Returns what the call tree shows of Numba's compiler: for each node, the time that compiles, in it (own) and with
   * what it calls (total). It is charged to one function, COMPILER, at the outermost frame of Numba (start).
   */
  compilerFrames(selection) {
    const own = new Float64Array(this.count), total = new Float64Array(this.count), start = new Int32Array(this.count).fill(-1);
    for (let node = 1; node < this.count; node++) {
      const f = this.functionOf[this.spot[node]], library = f >= 0 && this.data.functions[f].library;
      start[node] = start[this.parent[node]];
      if (start[node] < 0 && ['numba', 'llvmlite', 'libllvmlite'].includes(library)) start[node] = node;
    }
    for (let node = this.count - 1; node > 0; node--) {
      if (start[node] < 0) continue;
      own[node] = selection.compiling[node];
      total[node] += own[node];
      if (start[node] !== node) total[this.parent[node]] += total[node];
    }
    return { own, total, start };
  }

  /** Returns the call tree by function: { f, own, total, below }. Inverted, it has the callers below each function. */
  tree(selection, inverted) {
    const compiler = this.compilerFrames(selection);
    const newNode = (f, up) => ({ f, up, own: 0, total: 0, below: new Map() });
    const child = (parent, f) => {
      let node = parent.below.get(f);
      if (!node) parent.below.set(f, node = newNode(f, parent));
      return node;
    };
    const root = newNode(-2, null);
    root.total = selection.all;
    if (!inverted) {
      const treeNodes = [root];
      root.own = selection.own[0];
      for (let index = 1; index < this.count; index++) {
        if (!selection.total[index]) continue;
        const compiled = compiler.total[index], own = selection.own[index] - compiler.own[index], total = selection.total[index] - compiled;
        if (compiled && compiler.start[index] === index) {
          const frame = child(treeNodes[this.parent[index]], COMPILER);
          frame.own += compiled; frame.total += compiled;
        }
        if (!total) continue;
        // A function and its entry point share one node.
        const parent = this.parent[index], isInsideEntry = parent && this.isEntry[this.spot[parent]];
        const node = treeNodes[index] = isInsideEntry ? treeNodes[parent] : child(treeNodes[parent], this.functionOf[this.spot[index]]);
        node.own += own;
        if (!isInsideEntry) node.total += total;
      }
      return root;
    }
    const addCallers = (leaf, above, node, weight) => {
      for (let ancestor = above; ancestor > 0; ancestor = this.parent[ancestor]) {
        if (this.isEntry[this.spot[ancestor]] && ancestor !== leaf) { if (this.parent[ancestor] === 0) node.own += weight; continue; }
        node = child(node, this.functionOf[this.spot[ancestor]]);
        node.total += weight;
        if (this.parent[ancestor] === 0) node.own += weight;
      }
    };
    for (let leaf = 1; leaf < this.count; leaf++) {
      const own = selection.own[leaf] - compiler.own[leaf], compiled = compiler.start[leaf] === leaf ? compiler.total[leaf] : 0;
      if (own) addCallers(leaf, leaf, root, own);
      if (!compiled) continue;
      const frame = child(root, COMPILER);
      frame.total += compiled;
      if (this.parent[leaf] === 0) frame.own += compiled;
      addCallers(-1, this.parent[leaf], frame, compiled);
    }
    return root;
  }

  /** Returns, for each parallel loop, the time that each thread spent inside it and waited for the other threads. */
  byThread(range) {
    const { data, parts } = this, slices = range || [0, Infinity], loops = new Map(), inside = new Int32Array(this.count).fill(-1);
    const isParallel = data.functions.map((row) => row.parallel);
    for (let node = 1; node < this.count; node++) {
      const f = this.functionOf[this.spot[node]];
      inside[node] = inside[this.parent[node]] >= 0 ? inside[this.parent[node]] : isParallel[f] ? f : -1;
    }
    for (let offset = 0; offset < parts.length; offset += PART_FIELDS) {
      const f = inside[parts[offset + 2]];
      // The thread that starts the loop waits inside it for the others, so waits are skipped here.
      if (f < 0 || parts[offset + 3] === WAITING || parts[offset] < slices[0] || parts[offset] >= slices[1]) continue;
      if (!loops.has(f)) loops.set(f, new Map());
      const threads = loops.get(f);
      if (!threads.has(parts[offset + 1])) threads.set(parts[offset + 1], { inside: 0, waited: 0 });
      threads.get(parts[offset + 1]).inside += this.amount(offset);
    }
    const { barriers } = data.stacks;
    for (let offset = 0; offset < barriers.length; offset += 4) {
      const [f, thread, slice, waited] = barriers.slice(offset, offset + 4), times = loops.get(f) && loops.get(f).get(thread);
      if (times && slice >= slices[0] && slice < slices[1]) times.waited += waited;
    }
    return loops;
  }
}
