import { mount } from 'svelte'
import App from './App.svelte'
import './app.css'
import { keepFocus } from './lib/focus'

const target = document.getElementById('app')
if (target) mount(App, { target })
keepFocus()
