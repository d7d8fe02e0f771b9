/** One clock for all relative times, so that a thousand of them cost one timer. */

class Now {
  ms = $state(Date.now())

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.ms = Date.now()
    }, 5_000)
    document.addEventListener('visibilitychange', () => {
      this.ms = Date.now()
    })
  }
}

export const now = new Now()
