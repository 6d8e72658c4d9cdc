// NAME is put in by recorder.py. Sound stays in this page: nothing is sent anywhere.
(() => {
  const name = "NAME", recorders = (window.minillmRecorders ??= {});
  const state = (recorders[name] ??= {recorder: null, url: null, problem: ""});
  const places = () => document.querySelectorAll(`.${name}-recorder`);
  if (!state.listening) {
    state.listening = true;
    document.addEventListener("click", event => {
      if (event.target.closest?.(`.${name}-record`)) state.recorder ? stop() : start();
    }, true);
  }
  async function start() {
    if (state.isAsking) return; // the browser's question is still open
    state.isAsking = true;
    try {
      if (!navigator.mediaDevices) throw new Error("a browser lends its microphone to https and to localhost only");
      const stream = await navigator.mediaDevices.getUserMedia({audio: true});
      const parts = [], recorder = new MediaRecorder(stream);
      recorder.ondataavailable = event => parts.push(event.data);
      recorder.onstop = () => {
        stream.getTracks().forEach(track => track.stop());
        if (state.url) URL.revokeObjectURL(state.url);
        state.url = URL.createObjectURL(new Blob(parts, {type: recorder.mimeType}));
        state.recorder = null;
        draw();
      };
      recorder.start();
      Object.assign(state, {recorder, problem: ""});
    } catch (error) {
      state.problem = `No recording: ${error.message ?? error}`;
    } finally {
      state.isAsking = false;
    }
    draw();
  }
  function stop() {
    if (state.recorder?.state === "recording") state.recorder.stop();
  }
  function draw() {
    for (const place of places()) {
      place.querySelector("button").textContent = state.recorder ? "Stop recording" : state.url ? "Record again" : "Record";
      place.querySelector("span").textContent = state.problem || (state.recorder ? "recording" : "");
      const player = place.querySelector("audio");
      player.hidden = !state.url || Boolean(state.recorder);
      if (state.url && player.src !== state.url) player.src = state.url;
    }
  }
  draw();
})();
