"""Tests the report's page in a headless Chromium: `browser.py PAGE [PICTURES]`.

Speaks WebDriver with chromedriver, so that clicks and keys are real browser events. Prints `ok`; on a failure, prints
the reason and exits with 1. With a directory for pictures, saves screenshots there.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --window-size=1280,720 --hide-scrollbars""".split()

# Number of animation frames for scrolling the page from start to end.
STEPS = 240


class Browser:
    def __init__(self, profile):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.base = "http://127.0.0.1:" + line.rstrip().rstrip(".").rsplit(" ", 1)[1]
                break
        options = {"args": [*FLAGS, "--user-data-dir=" + profile]}
        session = self.send("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self.base += "/session/" + session["sessionId"]
        # Timeout of scripts that wait for frames, on a busy machine.
        self.send("POST", "/timeouts", {"script": 180_000})

    def send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=200) as response:
            return json.load(response)["value"]

    def run(self, script, *arguments):
        return self.send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def keys(self, text):
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.send("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def click(self, selector):
        # The browser scrolls to an element before it clicks it, and the page redraws its rows when it is scrolled.
        for attempt in range(5, 0, -1):
            element = self.send("POST", "/element", {"using": "css selector", "value": selector})
            try:
                return self.send("POST", "/element/" + next(iter(element.values())) + "/click", {})
            except urllib.error.HTTPError as error:
                if "stale element" not in error.read().decode() or attempt == 1:
                    raise

    def cdp(self, command, **parameters):
        return self.send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def metrics(self):
        """Returns the page's metrics, such as the CPU time of its main thread in seconds."""
        return {entry["name"]: entry["value"] for entry in self.cdp("Performance.getMetrics")["metrics"]}

    def picture(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.send("GET", "/screenshot")))

    def close(self):
        try:
            self.send("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()


def until(description, condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, description
        time.sleep(0.05)


def use(browser, page, pictures):
    def save(name):
        if pictures:
            browser.picture(os.path.join(pictures, name))

    used = []
    browser.send("POST", "/url", {"url": "file://" + os.path.abspath(page)})
    if browser.run("return document.documentElement.classList.contains('dark')"):
        browser.keys("d")
    until(
        "the hottest lines are shown",
        lambda: browser.run("return document.querySelectorAll('#hotlines tbody tr').length") > 0,
    )
    use_stacks(browser, used, save, page)
    browser.keys("2")
    until("rows are drawn", lambda: browser.run("return document.querySelectorAll('.row.line').length") > 5)
    assert browser.run("return typeof window.injected") == "undefined", "something in the data was executed"
    assert browser.run("return document.images.length") == 0
    assert browser.run("return performance.getEntriesByType('resource').length") == 0, "the page loads something"
    save("lines-html-source.png")

    dark = "return document.documentElement.classList.contains('dark')"

    # Check a hot line, its inlined calls, its callers and its assembly.
    selected_row = lambda: int(
        browser.run("return (document.querySelector('.row.here') || {dataset: {at: -1}}).dataset.at")
    )
    selected_line = lambda: browser.run(
        "const r = document.querySelector('.row.here .at'); return r ? r.textContent : ''"
    )
    rows = lambda kind: browser.run("return document.querySelectorAll('.row." + kind + "').length")
    assert selected_row() > 0 and rows("here") == 1
    if browser.run("return [...document.querySelectorAll('.row.line')].some(r => r.querySelector('button.fold'))"):
        used.append("inlined calls")
        browser.run("document.querySelector('button.fold').click()")
        assert rows("call") > 0, "inlined calls unfold"
        browser.keys("\ue007")
        assert rows("call") == 0, "and fold"
        browser.keys("\ue007")
        assert rows("call") > 0
    moves = [selected_row()]
    for key in "jknp":
        browser.keys(key)
        moves.append(selected_row())
    assert moves[0] != moves[1] and moves[2] == moves[0], f"j goes down, k back: {moves}"
    assert moves[3] > moves[0] or moves[4] < moves[3], f"n and p go to hot lines: {moves}"
    browser.run("document.querySelector('#functions .item').click()")
    first = selected_row()
    browser.keys("n")
    assert selected_row() > first, "n goes down"
    assert browser.run("return document.querySelectorAll('#panel section').length") > 0, "callers are shown"
    for _ in range(20):
        # Interpreted lines have no assembly.
        if browser.run("return !!document.getElementById('assembly')"):
            break
        browser.keys("n")
    browser.keys("a")
    assert browser.run("return (document.querySelector('#panel pre') || {}).textContent || ''").strip(), (
        "assembly is shown"
    )
    save("lines-html-assembly.png")
    use_callers(browser, used, selected_row, selected_line)
    use_search(browser, used, selected_row, rows)
    use_threads(browser, used)
    use_processes(browser, used, save)

    # Toggle the margin and the dark theme.
    browser.keys("m")
    assert "total" in browser.run("return document.getElementById('mode').textContent")
    browser.keys("m")
    browser.keys("d")
    assert browser.run(dark) is True
    # In the demo, select the function with unfolded inlined calls.
    browser.run(
        "const all = [...document.querySelectorAll('#functions .item')];"
        "(all.find((item) => item.textContent.includes('.advance')) || all[0]).click()"
    )
    save("lines-html-dark.png")

    # Scroll from end to end. Measure the CPU time of the page's thread per frame, which must be less than 16.7 ms (60
    # frames a second). Other work on the machine does not count.
    browser.cdp("Performance.enable", timeDomain="threadTicks")
    before = browser.metrics()
    slowest = browser.send(
        "POST",
        "/execute/async",
        {
            "args": [STEPS],
            "script": """
        const steps = arguments[0], done = arguments[1], main = document.getElementById('main');
        let slowest = 0, last = performance.now(), step = 0;
        const next = (now) => {
            if (step > 2) slowest = Math.max(slowest, now - last);
            last = now;
            if (step++ === steps) return done(slowest);
            main.scrollTop = main.scrollHeight * step / steps;
            requestAnimationFrame(next);
        };
        requestAnimationFrame(next);""",
        },
    )
    assert browser.run("return document.querySelectorAll('.row').length") < 300, "only what is seen is drawn"
    after = browser.metrics()
    work = {
        name: (after[name] - before[name]) * 1000 / STEPS
        for name in ("TaskDuration", "ScriptDuration", "LayoutDuration")
    }
    assert work["TaskDuration"] < 16.7, work
    return slowest, work, used


def use_stacks(browser, used, save, page):
    """Checks hottest lines, flame graph and call tree, for the whole recording and for a part of the time."""
    texts = lambda selector: browser.run(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )
    use_line_tree(browser, used)
    share = lambda text: float(text.removesuffix(" %"))
    percents = [share(text) for text in texts("#hotlines tbody td:nth-child(2)")]
    assert 0 < len(percents) <= 10 and percents == sorted(percents, reverse=True), f"the hottest first: {percents}"
    totals = [share(text) for text in texts("#answer tbody tr:not(.elsewhere) td:nth-child(2)")]
    assert totals and totals[0] == max(totals), f"the widest line first: {totals}"
    if browser.run("return document.querySelectorAll('#answer .flag button').length"):
        used.append("advice")
        browser.click("#answer .flag button")
        (advice,) = texts("#answer tr.advice")
        assert len(advice.strip()) > 20, advice
        assert browser.run(
            "const cell = document.querySelector('#answer tr.advice td:last-child');"
            " return cell.scrollWidth <= cell.clientWidth"
        ), "the advice is not cut off"
        browser.click("#answer .flag button")
        assert not texts("#answer tr.advice")
    yours, libraries = texts("#hotfunctions tbody td:nth-child(2)"), texts("#hotlibraries tbody td:nth-child(2)")
    assert yours and all(
        list(map(share, rows)) == sorted(map(share, rows), reverse=True) for rows in (yours, libraries)
    ), (yours, libraries)
    compiles = any(
        text.endswith(" compiling") and share(text.split(" %")[0] + " %") > 1 for text in texts("#summary .activity")
    )
    assert compiles == any(text.startswith("Numba") for text in texts("#hotlibraries td:nth-child(3)")), (
        "a row for the compiler"
    )
    outside = browser.run("return JSON.parse(document.getElementById('data').textContent).outside")
    assert [label for label, _ in outside] == [
        text.split(" s ", 1)[-1] for text in texts("#summary .faint") if text.endswith("outside the 100 %")
    ]
    if outside:
        used.append("outside")
    expected_path = os.path.splitext(page)[0] + ".json"
    if os.path.exists(expected_path):
        with open(expected_path, encoding="utf-8") as file:
            expected = json.load(file)
        assert len(percents) == len(expected["hottest"]), (percents, expected)
        expected = [weight / expected["all"] * 100 for _, weight in expected["hottest"]]
        assert all(abs(one - exact) < 0.06 for one, exact in zip(percents, expected)), f"{percents}, not {expected}"
    save("lines-html.png")
    browser.keys("3")
    boxes = lambda: browser.run(
        "return [...document.querySelectorAll('.box')].map((one) => [one.node.total, one.offsetWidth])"
    )
    everything = boxes()
    assert len(everything) > 1 and all(total <= everything[0][0] for total, _ in everything)
    compiling = browser.run(
        "return [...document.querySelectorAll('.box.compiling')].map((one) => [one.textContent, one.node.below.size])"
    )
    if compiles:
        used.append("compiler")
        assert compiling and all(below == 0 for _, below in compiling), f"the compiler is one frame: {compiling}"
    save("lines-html-flames.png")
    browser.click(".box:nth-child(2)")
    zoomed = boxes()
    assert zoomed[0][0] == everything[1][0] and zoomed[0][1] == everything[0][1], (
        "what was clicked is as wide as the page"
    )
    assert len(texts("#path button")) == 2
    browser.keys("i")
    assert len(texts("#path button")) == 1 and boxes()[0][0] == everything[0][0], "inverted, it is as much"
    browser.keys("i")
    assert boxes() == everything
    browser.keys("4")
    rows = texts("button.treerow .number:nth-child(2)")
    assert rows[0] == "100.0 %" and len(rows) > 1, rows
    browser.click("button.treerow")
    assert len(texts("button.treerow")) == 1, "folded"
    browser.click("button.treerow")
    assert texts("button.treerow .number:nth-child(2)") == rows, "and unfolded"
    browser.keys("5")
    assert texts("#balance .bar"), "a bar for each thread"

    # Select the second half. The two halves must add up to the total time.
    total_weight = lambda: browser.run("return document.querySelector('button.treerow').node.total")
    end = "Number(document.getElementById('to').max)"
    choose = lambda field, part: browser.run(
        f"const one = document.getElementById(arguments[0]); one.value = {end} * arguments[1]; one.dispatchEvent(new"
        " Event('change'))",
        field,
        part,
    )
    browser.keys("4")
    whole = total_weight()
    # Percentages and amounts of the outermost rows of the tree of lines.
    outermost = lambda: browser.run(
        "return [1, 0].map((column) => [...document.querySelectorAll('#answer tbody tr')]"
        ".filter((row) => !(row.querySelector('.branches') || {}).textContent)"
        ".reduce((sum, row) => sum + parseFloat(row.cells[column].textContent.replace(/,/g, '')), 0))"
    )
    _, whole_tree = outermost()
    if browser.run(f"return {end}") == 0:
        return
    choose("from", 0.5)
    second, hot = total_weight(), texts("#hotlines tbody tr")
    percent, second_tree = outermost()
    assert 50 < percent < 101, percent
    save("lines-html-part.png")
    browser.keys("\ue00c")
    assert total_weight() == whole, "Escape: the whole recording"
    choose("to", 0.5)
    assert abs(second + total_weight() - whole) < 1 and 0 < second < whole, (second, total_weight(), whole)
    _, first_tree = outermost()
    assert abs(first_tree + second_tree - whole_tree) <= whole_tree / 10, (first_tree, second_tree, whole_tree)
    if hot != texts("#hotlines tbody tr"):
        used.append("time")
    browser.keys("\ue00c")
    assert total_weight() == whole


def use_line_tree(browser, used):
    """Compares the rows that the page chooses with those of the report, for the whole recording."""
    rows, elsewhere, own_rows, own_elsewhere = browser.run(
        "const data = JSON.parse(document.getElementById('data').textContent), { rows, elsewhere } = data.answer;"
        "const textOf = (file, line) =>"
        " data.files[file].parts.flatMap(([first, texts]) => texts[line - first] || [])[0];"
        "const own = new LineTree(data, new Stacks(data), (file, line) => textOf(file, line) || '').select(null, null);"
        "return [rows, elsewhere, own.rows, own.elsewhere];"
    )
    for row, own_row in zip(rows, own_rows):
        assert row == own_row, f"{row}, not {own_row}"
    assert len(rows) == len(own_rows) and elsewhere == own_elsewhere, (rows, own_rows, elsewhere, own_elsewhere)
    if any(row["of"].startswith("compiling, ") for row in rows):
        used.append("compilations")


def use_callers(browser, used, selected_row, selected_line):
    """Clicks the first caller that has another line, and checks that the page goes there."""
    items = browser.run("return document.querySelectorAll('#functions .item:not(.more)').length")
    callers = (
        "[...document.querySelectorAll('#panel section')].filter(s => s.textContent.includes('called by'))"
        ".flatMap(s => [...s.querySelectorAll('.link')])"
    )
    for item in range(items):
        browser.run("document.querySelectorAll('#functions .item:not(.more)')[arguments[0]].click()", item)
        previous_row, line = selected_row(), selected_line()
        texts = browser.run(f"return {callers}.map(link => link.textContent)")
        lines = [text.rsplit(":", 1)[-1] for text in texts]
        others = [index for index, text in enumerate(lines) if text.isdigit() and text != line]
        if others:
            used.append("callers")
            browser.run(f"{callers}[arguments[0]].click()", others[0])
            assert selected_row() != previous_row and selected_line() == lines[others[0]], (
                f"a caller at line {lines[others[0]]}: {selected_line()}"
            )
            return


def use_search(browser, used, selected_row, rows):
    browser.keys("/")
    browser.keys(
        "return " if browser.run("return document.getElementById('data').textContent.includes('return ')") else "a"
    )
    until("something is found", lambda: rows("found") == 1)
    hits = lambda: browser.run("return document.getElementById('hits').textContent")
    text = lambda: browser.run("return document.querySelector('.row.found .text').textContent")
    fold = (
        "[...document.querySelectorAll('.row.line')].find(r => r.querySelector('button.fold') && r.dataset.at <"
        " arguments[0])"
    )
    for _ in range(min(20, int(hits().split(" of ")[1]))):
        if browser.run(f"return !!{fold}", selected_row()):
            break
        browser.keys("\ue007")
    first, found_row, found_text = hits(), selected_row(), text()
    # Unfolding a row above moves every row below it, including the hits.
    if browser.run(f"return !!{fold}", found_row):
        used.append("search")
        browser.run(f"{fold}.querySelector('button.fold').click()", found_row)
        assert hits() == first, f"{first}, then {hits()}"
        if browser.run("return !!document.querySelector('.row.found')"):
            assert text() == found_text, f"{found_text!r} was found, and {text()!r} is marked"
    # The search field still has the focus.
    browser.keys("\ue007")
    wanted = browser.run("return document.getElementById('search').value")
    assert rows("found") == 1, "the next one is found"
    assert wanted in text(), f"{wanted!r} was looked for, {text()!r} is marked"
    browser.keys("\ue00c")


def use_threads(browser, used):
    """Checks that parts without figures per thread show none while a thread is selected."""
    if browser.run("return document.getElementById('thread').options.length") <= 2:
        return
    choose = "const c = document.getElementById('thread'); c.value = arguments[0]; c.dispatchEvent(new Event('change'))"
    numbers = lambda: browser.run("""
        const texts = (all) => [...document.querySelectorAll(all)].map((one) => one.textContent);
        return {
            head: texts('#summary b'), functions: texts('#functions .item'), files: texts('#files .item'),
            lines: texts('.row.line .number'), links: texts('#panel .link'),
        }""")
    before, seen = numbers(), []
    count = browser.run("return document.getElementById('thread').options.length") - 1
    for thread in range(count):
        browser.run(choose, str(thread))
        seen.append(numbers())
        assert not [text for text in seen[-1]["links"] if "%" in text], "callers have shares of all threads only"
    # Threads with the same work have the same shares.
    if all(any(thread[key] != before[key] for thread in seen) for key in ("head", "functions", "files", "lines")):
        used.append("threads")
    browser.run(choose, "-1")
    # Unimportant lines are folded by share, so other lines may be visible now.
    after = numbers()
    assert {**after, "lines": None} == {**before, "lines": None}


def use_processes(browser, used, save):
    """Clicks a bar in the strip of processes, and checks that the page shows this process."""
    if browser.run("return document.getElementById('processes').hidden"):
        return
    texts = lambda: browser.run(
        "return ['#summary > span', '#processtext > span'].map((one) => document.querySelector(one).textContent)"
    )
    chosen = lambda: browser.run(
        "const c = document.getElementById('process'); return [c.value, c.selectedOptions[0].text]"
    )
    whole, words = texts()
    assert words.startswith("least ") and "; most " in words, words
    browser.click("#processbars")
    number, name = chosen()
    save("lines-html-processes.png")
    summary, words = texts()
    amount = words.removeprefix(name + ": ").split(",")[0]
    assert int(number) >= 0 and summary.startswith(amount + " "), (number, name, summary, words)
    assert summary != whole
    browser.keys("\ue00c")
    assert chosen()[0] == "-1" and texts()[0] == whole, "Escape: all processes"
    used.append("processes")


def main():
    page, pictures = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        try:
            slowest, work, used = use(browser, page, pictures)
            problems = [
                entry for entry in browser.send("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"
            ]
            assert not problems, problems
        except AssertionError as error:
            print("failed:", error)
            sys.exit(1)
        finally:
            browser.close()
    parts = ", ".join(f"{name} {value:.2f} ms" for name, value in work.items())
    print(
        f"ok, {', '.join(used)}; the slowest of {STEPS} steps took {slowest:.0f} ms by the clock; processor time for a"
        f" frame: {parts}"
    )


main()
