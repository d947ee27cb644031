// The search of the site runs in a Worker, which browsers do not start from a file. For a site that is read from its files, a hidden iframe
// runs the Worker's script instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      this.inside = this.frame.contentWindow
      window.addEventListener("message", ({ source, data }) => {
        if (source === this.inside) this.dispatchEvent(new MessageEvent("message", { data }))
      })
      // What the script expects of a Worker: postMessage() to the page, importScripts() one after another.
      const { document: page } = this.inside
      page.open()
      page.write(`<body><script>
        postMessage = message => parent.postMessage(message, "*")
        importScripts = (...urls) => urls.reduce((before, src) => before.then(() => new Promise(resolve => {
          document.body.append(Object.assign(document.createElement("script"), { src, onload: resolve }))
        })), Promise.resolve())
      <\/script><script src="${url}"><\/script></body>`)
      page.close()
      this.loaded = new Promise(resolve => { this.inside.onload = resolve })  // after open(), which removes listeners
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
