// Where a link of the transcript leads, before it is followed.

export interface Destination {
  address: string;
  host: string;
  /** What deserves a second look, or nothing. */
  warning: string;
}

/** Only web addresses lead anywhere. */
export function destination(href: string, text: string): Destination | null {
  let url: URL;
  try {
    url = new URL(href);
  } catch {
    return null;
  }
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return null;
  let warning = '';
  if (url.hostname.split('.').some((label) => label.startsWith('xn--')))
    warning = 'The name of this site uses letters that can look like others.';
  else if (url.username !== '' || url.password !== '')
    warning = 'The address carries a user name, which can hide where it leads.';
  else if (looksLikeAnother(text, url.hostname)) warning = 'The text of the link names another site than it leads to.';
  else if (url.search.length > 200)
    warning = 'The address carries a lot of data, which could be part of this conversation.';
  else if (url.protocol === 'http:') warning = 'The connection to this site is not encrypted.';
  return { address: url.href, host: url.hostname, warning };
}

function looksLikeAnother(text: string, host: string): boolean {
  const named = /(?:https?:\/\/)?((?:[a-z0-9-]+\.)+[a-z]{2,})/i.exec(text.trim());
  if (!named || named.index !== 0 || named[1] === undefined) return false;
  const bare = (h: string) => h.toLowerCase().replace(/^www\./, '');
  return bare(named[1]) !== bare(host);
}
