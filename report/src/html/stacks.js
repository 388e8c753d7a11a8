'use strict';
// The samples, added up by what is chosen: a thread (-1: all) and slices of time (from, to; null: all). No page in
// here.
const SAMPLE = 7;
const COMPILED = 0, INTERPRETED = 1, COMPILING = 3, IMPORTING = 4, COLLECTING = 5, WAITING = 6;
const nothing = [0, 0, 0, 0];

class Stacks {
  constructor(data) {
    const { spots, nodes, parts } = data.stacks;
    Object.assign(this, { data, parts, count: nodes.length / 2 });
    const { count } = this;
    this.parent = new Int32Array(count); this.spot = new Int32Array(count);
    const path = [];
    for (let at = 0; at < count; at++) {
      const depth = nodes[at * 2];
      this.parent[at] = depth ? path[depth - 1] : -1;
      this.spot[at] = nodes[at * 2 + 1];
      path[depth] = at;
    }
    // Of each spot its function, and the number of its line.
    this.functionOf = []; this.lineOf = []; this.isEntry = []; this.places = [];
    const numbers = new Map();
    for (let at = 0; at < spots.length; at += 4) {
      const key = spots[at + 1] + ':' + spots[at + 2];
      this.functionOf.push(spots[at]);
      this.isEntry.push(spots[at + 3]);
      if (spots[at + 1] < 0) { this.lineOf.push(-1); continue; }
      if (!numbers.has(key)) { numbers.set(key, this.places.length); this.places.push([spots[at + 1], spots[at + 2]]); }
      this.lineOf.push(numbers.get(key));
    }
    this.lineNumbers = numbers;
    // Of each node its owner, the innermost function of Python or of compiled code: what C functions take is the time
    // of its line.
    this.owner = new Int32Array(count).fill(-1);
    this.ownerIsPython = new Uint8Array(count);
    // The innermost line of the user's at or above it, and the innermost library.
    this.user = new Int32Array(count).fill(-1);
    for (let at = 1; at < count; at++) {
      const line = this.lineOf[this.spot[at]];
      this.user[at] = line >= 0 && !data.files[this.places[line][0]].library ? line : this.user[this.parent[at]];
      const f = this.functionOf[this.spot[at]], kind = f < 0 ? '' : data.functions[f].kind, up = this.parent[at];
      const isOwner = kind === 'compiled' || kind === 'python';
      this.owner[at] = isOwner ? at : f < 0 ? -1 : this.owner[up];
      this.ownerIsPython[at] = isOwner ? kind === 'python' && this.lineOf[this.spot[at]] >= 0 : this.owner[at] >= 0 && this.ownerIsPython[up];
    }
  }

  /** Whose time it is: a library's, the compiler's, the import system's; the user's: null. */
  libraryOf(at, activity) {
    if (activity === COMPILING) return 'Numba\u2019s compiler';
    if (activity === IMPORTING) return 'import system';
    if (activity === INTERPRETED || activity === COLLECTING || activity === WAITING) return null;
    for (let up = this.owner[at] < 0 ? at : this.owner[at]; up > 0; up = this.parent[up]) {
      const f = this.functionOf[this.spot[up]], line = this.lineOf[this.spot[up]];
      if (f >= 0 && this.data.functions[f].library) return this.data.functions[f].library;
      if (line >= 0 && !this.data.files[this.places[line][0]].library) return null;
    }
    const f = this.functionOf[this.spot[at]];
    return activity === COMPILED ? null : f >= 0 && this.data.functions[f].module || '[unknown]';
  }

  /** Everything that the page shows of a choice. */
  choose(thread, range) {
    const { data, count, parts } = this, slices = range || [0, Infinity];
    const own = new Float64Array(count), total = new Float64Array(count), samples = new Float64Array(count), totalSamples = new Float64Array(count);
    const hot = data.stacks.hot.map(() => [0, 0, 0]), activities = data.stacks.activities.map(() => 0), threads = data.threads.map(() => data.stacks.activities.map(() => 0));
    // Of each line of the user's what it called elsewhere: all, there, compiling.
    const calling = new Map(), libraries = new Map();
    let all = 0;
    for (let at = 0; at < parts.length; at += SAMPLE) {
      if (parts[at] < slices[0] || parts[at] >= slices[1]) continue;
      const weight = this.amount(at), of = parts[at + 1], activity = parts[at + 3];
      threads[of][activity] += weight;
      if (thread >= 0 && of !== thread) continue;
      own[parts[at + 2]] += weight;
      samples[parts[at + 2]] += parts[at + 5];
      const code = parts[at + 4] - 1, line = hot[code >> 1];
      if (line) { line[0] += weight; if (code & 1) line[2] += weight; }
      activities[activity] += weight;
      all += weight;
      const node = parts[at + 2], user = this.user[node], library = this.libraryOf(node, activity);
      if (library) libraries.set(library, (libraries.get(library) || 0) + weight);
      if (user < 0) continue;
      if (!calling.has(user)) calling.set(user, [0, 0, 0]);
      const sum = calling.get(user), here = data.stacks.hot[code >> 1], isHere = line && here[0] === this.places[user][0] && here[1] === this.places[user][1];
      sum[0] += weight; if (!isHere) sum[1] += weight; if (activity === COMPILING) sum[2] += weight;
    }
    for (let at = count - 1; at >= 0; at--) {
      total[at] += own[at]; totalSamples[at] += samples[at];
      if (at) { total[this.parent[at]] += total[at]; totalSamples[this.parent[at]] += totalSamples[at]; }
    }
    const n = { own, samples, total, totalSamples }, lines = this.shares(n, this.lineOf, this.places.length), isPart = thread >= 0 || range;
    data.stacks.hot.forEach(([file, line], at) => {
      const sum = lines[this.lineNumbers.get(file + ':' + line)];
      hot[at][1] = Math.max(hot[at][0], sum ? sum[3] : 0);
    });
    return { thread, range, all, own, total, activities, threads, hot, calling, libraries, lines: isPart ? lines : null,
      functions: isPart ? this.shares(n, this.functionOf, data.functions.length) : null };
  }

  /** Of a part: nanoseconds or events; samples where these are not known. */
  amount(at) { return this.data.weight ? this.parts[at + 6] : this.parts[at + 5]; }

  /** Self and total of each line or function; one that is on a stack several times counts once. */
  shares(n, keyOf, length) {
    const found = Array.from({ length }, () => null), path = [], onPath = new Int32Array(length);
    for (let at = 1; at < this.count; at++) {
      while (path.length && path[path.length - 1] !== this.parent[at]) {
        const left = keyOf[this.spot[path.pop()]];
        if (left >= 0) onPath[left]--;
      }
      path.push(at);
      const key = keyOf[this.spot[at]];
      // What an interpreted line calls of C is its own, too.
      if (n.own[at] && this.ownerIsPython[at] && this.owner[at] !== at && this.lineOf[this.spot[at]] < 0) {
        const caller = keyOf[this.spot[this.owner[at]]], sum = found[caller] || (found[caller] = [0, 0, 0, 0]);
        if (caller !== key) { sum[0] += n.samples[at]; sum[1] += n.own[at]; }
      }
      if (key < 0) continue;
      if (n.total[at]) {
        const sum = found[key] || (found[key] = [0, 0, 0, 0]);
        sum[0] += n.samples[at]; sum[1] += n.own[at];
        if (!onPath[key]) { sum[2] += n.totalSamples[at]; sum[3] += n.total[at]; }
      }
      onPath[key]++;
    }
    return found;
  }

  /** The calls by function: { f, own, total, below }. Inverted: each function with its callers below it. */
  tree(chosen, inverted) {
    const made = (f, up) => ({ f, up, own: 0, total: 0, below: new Map() });
    const child = (of, f) => {
      let found = of.below.get(f);
      if (!found) of.below.set(f, found = made(f, of));
      return found;
    };
    const root = made(-2, null);
    root.total = chosen.all;
    if (!inverted) {
      const of = [root];
      root.own = chosen.own[0];
      for (let at = 1; at < this.count; at++) {
        if (!chosen.total[at]) continue;
        // A function and its entry are one.
        const up = this.parent[at], isBehindEntry = up && this.isEntry[this.spot[up]];
        const node = of[at] = isBehindEntry ? of[up] : child(of[up], this.functionOf[this.spot[at]]);
        node.own += chosen.own[at];
        if (!isBehindEntry) node.total += chosen.total[at];
      }
      return root;
    }
    for (let leaf = 1; leaf < this.count; leaf++) {
      if (!chosen.own[leaf]) continue;
      for (let at = leaf, node = root; at > 0; at = this.parent[at]) {
        if (this.isEntry[this.spot[at]] && at !== leaf) { if (this.parent[at] === 0) node.own += chosen.own[leaf]; continue; }
        node = child(node, this.functionOf[this.spot[at]]);
        node.total += chosen.own[leaf];
        if (this.parent[at] === 0) node.own += chosen.own[leaf];
      }
    }
    return root;
  }

  /** Of each function whose loop threads share, what each thread was in it, and what it waited for the others. */
  byThread(range) {
    const { data, parts } = this, slices = range || [0, Infinity], found = new Map(), inside = new Int32Array(this.count).fill(-1);
    const wanted = data.functions.map((row) => row.parallel);
    for (let at = 1; at < this.count; at++) {
      const f = this.functionOf[this.spot[at]];
      inside[at] = inside[this.parent[at]] >= 0 ? inside[this.parent[at]] : wanted[f] ? f : -1;
    }
    for (let at = 0; at < parts.length; at += SAMPLE) {
      const f = inside[parts[at + 2]];
      // Of the thread that starts the loop, waiting for the others is inside, too.
      if (f < 0 || parts[at + 3] === WAITING || parts[at] < slices[0] || parts[at] >= slices[1]) continue;
      if (!found.has(f)) found.set(f, new Map());
      const threads = found.get(f);
      if (!threads.has(parts[at + 1])) threads.set(parts[at + 1], { inside: 0, waited: 0 });
      threads.get(parts[at + 1]).inside += this.amount(at);
    }
    const { barriers } = data.stacks;
    for (let at = 0; at < barriers.length; at += 4) {
      const [f, thread, slice, waited] = barriers.slice(at, at + 4), of = found.get(f) && found.get(f).get(thread);
      if (of && slice >= slices[0] && slice < slices[1]) of.waited += waited;
    }
    return found;
  }
}
