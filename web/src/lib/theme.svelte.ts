/** Light or dark: as the system says, unless the person said otherwise here. */

import { keep, recall } from './kept'

export type Theme = 'system' | 'light' | 'dark'

const KEY = 'hone.theme'

function stored(): Theme {
  const value = recall('localStorage', KEY)
  return value === 'light' || value === 'dark' ? value : 'system'
}

const system = matchMedia('(prefers-color-scheme: dark)')

class ThemeState {
  choice = $state<Theme>(stored())
  systemDark = $state(system.matches)
  dark = $derived(this.choice === 'dark' || (this.choice === 'system' && this.systemDark))

  constructor() {
    system.addEventListener('change', () => {
      this.systemDark = system.matches
      this.apply()
    })
    this.apply()
  }

  next() {
    const order: Theme[] = ['system', 'light', 'dark']
    this.set(order[(order.indexOf(this.choice) + 1) % order.length] ?? 'system')
  }

  set(choice: Theme) {
    this.choice = choice
    keep('localStorage', KEY, choice === 'system' ? null : choice)
    this.apply()
  }

  private apply() {
    document.documentElement.dataset.theme = this.dark ? 'dark' : 'light'
  }
}

export const theme = new ThemeState()
