// Browsers run no worker in a page from a disk, and the search is one. Here its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      // What the script posts is for this page, and would else come back to the script itself.
      frame.srcdoc = `<script>postMessage = data => dispatchEvent(new CustomEvent("posted", { detail: data }))</script>
        <script src="${new URL(url, location)}"></script>`;
      this.frame = new Promise(ready => frame.addEventListener("load", () => {
        frame.contentWindow.addEventListener("posted", event => this.dispatchEvent(new MessageEvent("message", { data: event.detail })));
        ready(frame.contentWindow);
      }));
      document.body.append(frame);
    }

    postMessage(data) {
      this.frame.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
