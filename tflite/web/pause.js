/** Pauses of work in the page's own thread. */

export const BUSY = 16; // ms of work before the page reacts and draws

/** Lets the browser react and draw; unlike a timer it waits no longer than that needs. @returns {Promise<void>} */
export function pause() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
