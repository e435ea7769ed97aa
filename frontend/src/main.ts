import './lib/locale';
import './styles/base.css';
import 'uplot/dist/uPlot.min.css';
import { mount } from 'svelte';
import App from './App.svelte';
import { start } from './lib/stores/start';
import { sentence } from './lib/bridge/bridge';
import { app } from './lib/stores/app.svelte';
import { typesetter } from './lib/view/typesetter.svelte';

const target = document.getElementById('app');
if (!target) throw new Error('index.html has no #app');
mount(App, { target });
requestAnimationFrame(() => setTimeout(() => void typesetter.load())); // after the first picture
start().catch((error: unknown) => {
  app.notify({
    level: 'error',
    text: `Colibri could not read its state: ${sentence(error)}. Quit and open it again.`,
    action: '',
    subject: '',
  });
});
