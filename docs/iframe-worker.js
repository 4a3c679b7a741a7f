// Search on file:// pages, where browsers start no workers: the script of the worker runs in a hidden frame.
// MkDocs Material asks for the name IFrameWorker, and for an importScripts that returns a promise.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.scope = frame.contentWindow;
    this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
    this.scope.importScripts = async (...urls) => { for (const each of urls) await this.load(each); };
    this.ready = this.load(url);
  }

  load(url) {
    return new Promise((done, failed) => {
      const script = this.scope.document.createElement("script");
      Object.assign(script, { src: new URL(url, location.href).href, onload: done, onerror: failed });
      this.scope.document.body.append(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.scope.frameElement.remove();
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
