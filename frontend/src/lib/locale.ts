// WebKitGTK reports the language "C" where no locale is set, which Intl refuses with an exception; libraries ask for it as they load.
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, 'language', { value: 'en-US' });
}

export {};
