// What the dashboard does in the browser by itself: light or dark, copying, signing out, and leaving when the session is over.
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

  window.penstock = {
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
    // A server that has started again knows no session of before, and refuses the socket.
    window.socket.io.on("reconnect_error", async () => {
      if (await isOver().catch(() => false)) window.location.replace("/login");
    });
  });
})();
