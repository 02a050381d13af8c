// The picture: its views under one clock.

class Picture {
  constructor(el, send) {
    this.shared = new Shared();
    this.send = send;
    this.stage = node("div.kbp-stage");
    this.refused = node("div.kbp-refused", { role: "alert" });
    this.root = node("div.kbp-picture", {}, this.refused, this.stage);
    el.append(this.root);
    this.machine = new MachineView(this.stage, this.shared, send);
    this.side = node("div.kbp-side");
    this.stage.append(this.side);
    this.details = new DetailsView(this.side, this.shared, send, this.machine);
    this.why = this.details.why = new WhyView(this.side, this.shared, send);
    this.clock = new Clock(this.root, this.shared);
    this.timeline = new TimelineView(this.root, this.shared, send);
    this.views = [this.machine, this.details, this.timeline, this.why];
    this.invite = node(
      "div.kbp-invite", { hidden: true }, node("span", {}, "Nothing has run yet."),
      node("button.kbp-button.kbp-primary.kbp-run", { type: "button", onclick: () => send?.({ do: "run" }) }, "Run"),
    );
    if (send?.answers.has("open_file")) {
      this.invite.append(openButton(send));
      this.clock.root.append(openButton(send));
      this.closed = acceptFiles(this.root, send);
    }
    this.machine.root.append(this.invite);
  }

  setScene(header, buffers) {
    this.refused.textContent = "";
    const end = header.run?.end_ns ?? 0;
    const { shared } = this;
    this.live = false;
    this.root.classList.remove("kbp-live");
    const run = `${header.run?.name} ${end}`;
    const other = run !== this.run;
    this.run = run;
    if (other) {
      shared.playing = false;
      shared.end = end;
      shared.window = [0, end];
    }
    for (const view of this.views) view.setScene(header, buffers);
    this.place = workplace(header.run?.nodes ?? []);
    if (other) shared.t = this.machine.loads?.hottest() ?? 0;
    this.clock.setScene(this.machine.loads);
    this.invite.hidden = Boolean(header.run) || !this.send?.answers.has("run");
  }

  /** Looks at a part of the machine, once the view has a size: by default the one that worked. */
  lookAt(place = this.place) {
    const seen = new ResizeObserver(() => {
      if (!this.machine.root.clientWidth || !this.machine.root.clientHeight) return;
      seen.disconnect();
      const found = place && this.machine.locate(place);
      if (found) this.machine.lookAt(found.rect, false);
    });
    seen.observe(this.machine.root);
  }

  setLive(index, frame) {
    this.live = true;
    this.root.classList.add("kbp-live");
    this.shared.playing = false;
    this.invite.hidden = true;
    this.machine.setLive(index, frame);
    this.details.setLive();
    this.clock.setLive(frame.now_ns);
  }

  destroy() {
    for (const view of this.views) view.destroy();
    this.clock.destroy();
    this.closed?.();
    this.shared.destroy();
    this.root.remove();
  }
}

/** Returns the smallest part of the machine that contains every engine that worked; empty if that is all of it. */
function workplace(nodes) {
  let common = null;
  for (const id of nodes) {
    const places = ENGINE.exec(id)?.[1].split(".");
    if (!places) continue;
    common ??= places;
    while (common.some((place, i) => place !== places[i])) common = common.slice(0, -1);
  }
  return common?.join(".") ?? "";
}

/** Play, scrub, speed, and the hottest moment. */
function render({ model, el }) {
  const send = (message, buffers) => model.send(message, undefined, buffers);
  send.answers = new Set(model.get("answers"));
  const picture = new Picture(el, send);
  const show = () => picture.setScene(model.get("header"), model.get("buffers"));
  const live = () => {
    const frame = model.get("live");
    if (frame?.now_ns) picture.setLive(model.get("live_index"), frame);
    else if (picture.live) show();
  };
  const select = () => (picture.shared.selected = model.get("selected") || null);
  const selected = (event) => {
    if (!event.detail.has("selected")) return;
    model.set("selected", picture.shared.selected ?? "");
    model.save_changes();
  };
  const answer = (message, buffers) => {
    if (message.do !== "refuse") {
      picture.timeline.receive(message, buffers);
      picture.why.receive(message);
      return;
    }
    show();
    picture.refused.textContent = message.text;
  };
  model.on("msg:custom", answer);
  model.on("change:header", show);
  model.on("change:live", live);
  model.on("change:selected", select);
  picture.shared.addEventListener("change", selected);
  show();
  select();
  if (model.get("small")) {
    picture.root.classList.add("kbp-small");
    picture.lookAt();
  }
  return () => {
    model.off("msg:custom", answer);
    model.off("change:header", show);
    model.off("change:live", live);
    model.off("change:selected", select);
    picture.destroy();
  };
}

// JupyterLab and Notebook 7 take letters and arrow keys as shortcuts, unless the element with the focus says not to.
document.addEventListener("focusin", ({ target }) => {
  if (target.closest(".kb-explorer, .kbp-picture")) target.dataset.lmSuppressShortcuts = "true";
}, true);

export default { render };
