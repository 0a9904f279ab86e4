// `cascade watch`: a newer page is read in place of this one. What the reader has opened, typed and scrolled to stays.

const ASK_MS = 2000;

function follow(shown) {
  const state = h("span", { id: "live", class: "live", role: "status" }, "live");
  byId("theme").before(state);
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };

  async function ask() {
    if (document.hidden) return;
    const tag = (await fetch("", { method: "HEAD" })).headers.get("ETag");
    if (tag && tag !== shown) {
      const answer = await fetch("");
      if (!answer.ok) return; // the run folder is being changed
      await replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
      shown = answer.headers.get("ETag");
    }
    say("live");
  }

  async function replace(page) {
    const blocks = "script[type='text/plain']", focused = document.activeElement?.name;
    const opened = [...document.querySelectorAll("details[open]")].map((each) => each.dataset.of);
    document.querySelectorAll(blocks).forEach((block) => block.remove());
    document.body.append(...page.querySelectorAll(blocks));
    const run = await unpackJson("run");
    overview(run);
    await experts(run);
    navigation();
    document.querySelectorAll("#graph details").forEach((each) => { each.open = opened.includes(each.dataset.of); });
    await refreshViewer(run);
    if (focused) document.querySelector(`main select[name="${focused}"]`)?.focus({ preventScroll: true });
    dispatchEvent(new Event("followed"));
  }

  const again = () => setTimeout(() => ask().catch(() => say("no answer")).then(again), ASK_MS);
  again();
}
