// The whole step in small: how busy the devices are, and which stretch of it the timeline shows.

class Minimap {
  /** `move` is told the new start of the visible stretch. */
  constructor(timeline) {
    this.timeline = timeline;
    this.canvas = el("canvas", { class: "minimap", "aria-hidden": "true" });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.moveTo(event);
    });
    this.canvas.addEventListener("pointermove", (event) => event.buttons && this.moveTo(event));
    this.backdrop = null;
  }

  moveTo(event) {
    const box = this.canvas.getBoundingClientRect(),
      { view, model } = this.timeline,
      left = view.left;
    const time = ((event.clientX - box.left - left) / (box.width - left)) * model.total,
      half = (view.to - view.from) / 2;
    this.timeline.look(time - half, time + half);
  }

  /** The busy shares, drawn once for a size and a scheme. */
  prepare(width, height, ratio) {
    const { model, view, state } = this.timeline;
    this.backdrop = document.createElement("canvas");
    this.canvas.width = this.backdrop.width = width * ratio;
    this.canvas.height = this.backdrop.height = height * ratio;
    const context = this.backdrop.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = state.colours.stripe;
    context.fillRect(view.left, 0, width, height);
    const rows = model.rows.filter((row) => row.kind === "device"),
      across = Math.max(1, Math.floor(width - view.left)),
      step = model.total / across;
    context.fillStyle = TASK_COLOURS.forward;
    for (let x = 0; x < across; x += 1) {
      let busy = 0;
      for (const row of rows) busy += busyWithin(row, x * step, (x + 1) * step);
      const high = (height - 4) * Math.min(1, busy / (step * Math.max(rows.length, 1)));
      context.fillRect(view.left + x, height - 2 - high, 1, high);
    }
    context.fillStyle = state.colours.faint;
    context.font = "11px system-ui, sans-serif";
    context.fillText("all devices", 8, height / 2 + 4);
  }

  paint(ratio) {
    const { view, model, state } = this.timeline,
      context = this.canvas.getContext("2d");
    const width = this.canvas.width / ratio,
      height = this.canvas.height / ratio,
      scale = (width - view.left) / model.total;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.backdrop, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const x = view.left + view.from * scale,
      wide = Math.max(3, (view.to - view.from) * scale);
    context.fillStyle = state.colours.paper;
    context.globalAlpha = 0.65;
    context.fillRect(view.left, 0, x - view.left, height);
    context.fillRect(x + wide, 0, width, height);
    context.globalAlpha = 1;
    context.strokeStyle = state.colours.focus;
    context.lineWidth = 2;
    context.strokeRect(x + 1, 1, Math.max(1, wide - 2), height - 2);
  }
}
