"""Opens the report's page in a headless Chromium and uses it: `browser.py PAGE [PICTURES]`.

Speaks WebDriver with chromedriver, so that clicks and keys are the browser's own. Prints `ok`, or what was wrong and exits
with 1. With a directory for pictures, saves what it sees.
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

#: Frames in which the page is scrolled from its beginning to its end.
STEPS = 240


class Browser:
    def __init__(self, profile):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.base = "http://127.0.0.1:" + line.rstrip().rstrip(".").rsplit(" ", 1)[1]
                break
        options = {"args": [*FLAGS, "--user-data-dir=" + profile]}
        made = self.send("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self.base += "/session/" + made["sessionId"]
        # Of scripts that wait for frames, on a machine that has other things to do.
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
        # What is out of sight is scrolled to before it is clicked, and the page draws its rows anew when it is scrolled.
        for chance in range(5, 0, -1):
            found = self.send("POST", "/element", {"using": "css selector", "value": selector})
            try:
                return self.send("POST", "/element/" + next(iter(found.values())) + "/click", {})
            except urllib.error.HTTPError as error:
                if "stale element" not in error.read().decode() or chance == 1:
                    raise

    def cdp(self, command, **parameters):
        return self.send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def metrics(self):
        """Processor time of the page's main thread so far, in seconds."""
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


def until(what, condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def use(browser, page, pictures):
    def save(name):
        if pictures:
            browser.picture(os.path.join(pictures, name))

    browser.send("POST", "/url", {"url": "file://" + os.path.abspath(page)})
    until("rows are drawn", lambda: browser.run("return document.querySelectorAll('.row.line').length") > 5)
    assert browser.run("return typeof window.injected") == "undefined", "something in the data was executed"
    assert browser.run("return document.images.length") == 0
    assert browser.run("return performance.getEntriesByType('resource').length") == 0, "the page loads something"
    dark = "return document.documentElement.classList.contains('dark')"
    if browser.run(dark):
        browser.keys("d")
    save("lines-html.png")

    # A hot line, its inlined calls, its callers and its assembly.
    fold = "return [...document.querySelectorAll('.row.line')].findIndex(r => r.querySelector('button.fold'))"
    if browser.run(fold) >= 0:
        browser.click("button.fold")
        assert browser.run("return document.querySelectorAll('.row.call').length") > 0, "inlined calls unfold"
    assert browser.run("return document.querySelectorAll('.row.here').length") == 1
    before = browser.run("return document.querySelector('.row.here').dataset.at")
    browser.keys("n")
    browser.keys("p")
    browser.keys("j")
    assert browser.run("return document.querySelector('.row.here').dataset.at") is not None
    browser.run("document.querySelector('#functions .item').click()")
    browser.keys("n")
    assert browser.run("return document.querySelectorAll('#panel section').length") > 0, "callers are shown"
    browser.keys("a")
    assert browser.run("return (document.querySelector('#panel pre') || {}).textContent || ''").strip(), "assembly is shown"
    save("lines-html-assembly.png")
    assert before is not None

    # Search.
    browser.keys("/")
    browser.keys("total +=" if browser.run("return document.body.textContent.includes('total +=')") else "a")
    until("something is found", lambda: browser.run("return document.querySelectorAll('.row.found').length") == 1)
    browser.keys("\ue00c")

    # Threads, margin, dark.
    if browser.run("return document.getElementById('thread').options.length") > 2:
        head = "return document.querySelector('.row.line .number').textContent"
        browser.run("const c = document.getElementById('thread'); c.value = '1'; c.dispatchEvent(new Event('change'))")
        assert browser.run(head) is not None
        browser.run("const c = document.getElementById('thread'); c.value = '-1'; c.dispatchEvent(new Event('change'))")
    browser.keys("m")
    assert "total" in browser.run("return document.getElementById('mode').textContent")
    browser.keys("m")
    browser.keys("d")
    assert browser.run(dark) is True
    # Of the demo, the inlined calls that were unfolded.
    browser.run("const all = [...document.querySelectorAll('#functions .item')];"
                "(all.find((item) => item.textContent.includes('.advance')) || all[0]).click()")
    save("lines-html-dark.png")

    # Scrolling from end to end. What counts is the work of the page's thread for a frame, which has 16.7 ms at 60 frames a
    # second: its processor time, so that other work on the machine is not in it.
    browser.cdp("Performance.enable", timeDomain="threadTicks")
    before = browser.metrics()
    slowest = browser.send("POST", "/execute/async", {"args": [STEPS], "script": """
        const steps = arguments[0], done = arguments[1], main = document.getElementById('main');
        let slowest = 0, last = performance.now(), step = 0;
        const next = (now) => {
            if (step > 2) slowest = Math.max(slowest, now - last);
            last = now;
            if (step++ === steps) return done(slowest);
            main.scrollTop = main.scrollHeight * step / steps;
            requestAnimationFrame(next);
        };
        requestAnimationFrame(next);"""})
    assert browser.run("return document.querySelectorAll('.row').length") < 300, "only what is seen is drawn"
    after = browser.metrics()
    work = {name: (after[name] - before[name]) * 1000 / STEPS for name in ("TaskDuration", "ScriptDuration", "LayoutDuration")}
    assert work["TaskDuration"] < 16.7, work
    return slowest, work


def main():
    page, pictures = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        try:
            slowest, work = use(browser, page, pictures)
            problems = [entry for entry in browser.send("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]
            assert not problems, problems
        except AssertionError as error:
            print("failed:", error)
            sys.exit(1)
        finally:
            browser.close()
    parts = ", ".join(f"{name} {value:.2f} ms" for name, value in work.items())
    print(f"ok, the slowest of {STEPS} steps took {slowest:.0f} ms by the clock; processor time for a frame: {parts}")


main()
