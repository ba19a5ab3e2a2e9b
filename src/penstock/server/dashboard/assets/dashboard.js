// The parts of the dashboard that run in the browser: light or dark mode, copying, signing out, and leaving when the session ends.
(() => {
  const KEY = "penstock-dark";
  const isDark = () => document.body.classList.contains("body--dark");
  const apply = () => {
    const kept = localStorage.getItem(KEY);
    if (kept !== null) setDark(kept === "true");
  };
  const isOver = async () => (await fetch("/v1/me", { cache: "no-store" })).status === 401;
  const whenReady = (then) => {
    if (window.socket && document.querySelector("#app > *")) then();
    else setTimeout(() => whenReady(then), 20);
  };

  const short = (value) => (Math.abs(value) >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toPrecision(3));
  const scaled = (value, step, units, gap = " ") => {
    let place = 0;
    while (Math.abs(value) >= step && place < units.length - 1) {
      value /= step;
      place += 1;
    }
    return units[place] ? `${short(value)}${gap}${units[place]}` : short(value);
  };

  window.penstock = {
    // Formats of numbers in charts.
    amount: (value) => (value == null ? "" : scaled(value, 1000, ["", "k", "M", "G"])),
    size: (value) => (value == null ? "" : scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"])),
    seconds(value) {
      if (value == null) return "";
      if (Math.abs(value) < 1 && value !== 0) return `${(value * 1000).toFixed(0)} ms`;
      if (Math.abs(value) < 120) return `${short(value)} s`;
      return Math.abs(value) < 7200 ? `${short(value / 60)} min` : `${short(value / 3600)} h`;
    },
    toggle() {
      localStorage.setItem(KEY, String(!isDark()));
      apply();
    },
    async copy(event) {
      const line = event.target.closest(".p-command").querySelector("code").textContent;
      await navigator.clipboard.writeText(line);
      Quasar.Notify.create({ message: "Copied", type: "positive", timeout: 1200 });
    },
    async leave() {
      await fetch("/v1/session", { method: "DELETE" });
      window.location.replace("/login");
    },
  };

  whenReady(() => {
    apply();
    // A restarted server does not know earlier sessions, and refuses the socket.
    window.socket.io.on("reconnect_error", async () => {
      if (await isOver().catch(() => false)) window.location.replace("/login");
    });
  });
})();
