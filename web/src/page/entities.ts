// Names of characters, as `&eacute;` in Markdown, for the parser (`vite.config.ts` puts this in the
// place of its own). The parser's way in a browser is `innerHTML`, which the policy of the server's
// page refuses, and its table of all 2,125 names would be a fifth of the page. These are the 252 of
// HTML 4 and `&apos;`; others stay as they are written.

/** Names of characters that follow each other, from a first one on. */
const RUNS: [number, string][] = [
  [
    160,
    "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr " +
      "deg plusmn sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 " +
      "frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute " +
      "Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml " +
      "times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig agrave aacute acirc atilde " +
      "auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth " +
      "ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml " +
      "yacute thorn yuml",
  ],
  [913, "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho"],
  [931, "Sigma Tau Upsilon Phi Chi Psi Omega"],
  [
    945,
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho " +
      "sigmaf sigma tau upsilon phi chi psi omega",
  ],
];

/** Names and their characters in turn. */
const OTHERS =
  "amp & lt < gt > quot \" apos ' OElig Œ oelig œ Scaron Š scaron š Yuml Ÿ fnof ƒ circ ˆ tilde ˜ " +
  "ndash – mdash — lsquo ‘ rsquo ’ sbquo ‚ ldquo “ rdquo ” bdquo „ dagger † Dagger ‡ bull • " +
  "hellip … permil ‰ prime ′ Prime ″ lsaquo ‹ rsaquo › oline ‾ frasl ⁄ euro € image ℑ weierp ℘ " +
  "real ℜ trade ™ alefsym ℵ larr ← uarr ↑ rarr → darr ↓ harr ↔ crarr ↵ lArr ⇐ uArr ⇑ rArr ⇒ " +
  "dArr ⇓ hArr ⇔ forall ∀ part ∂ exist ∃ empty ∅ nabla ∇ isin ∈ notin ∉ ni ∋ prod ∏ sum ∑ " +
  "minus − lowast ∗ radic √ prop ∝ infin ∞ ang ∠ and ∧ or ∨ cap ∩ cup ∪ int ∫ there4 ∴ sim ∼ " +
  "cong ≅ asymp ≈ ne ≠ equiv ≡ le ≤ ge ≥ sub ⊂ sup ⊃ nsub ⊄ sube ⊆ supe ⊇ oplus ⊕ otimes ⊗ " +
  "perp ⊥ sdot ⋅ lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ lang ⟨ rang ⟩ loz ◊ spades ♠ clubs ♣ " +
  "hearts ♥ diams ♦ upsih ϒ thetasym ϑ piv ϖ";

/** Characters that cannot be seen in a source. */
const SPACES: [string, number][] = [
  ["ensp", 8194],
  ["emsp", 8195],
  ["thinsp", 8201],
  ["zwnj", 8204],
  ["zwj", 8205],
  ["lrm", 8206],
  ["rlm", 8207],
];

const CHARACTERS = new Map(SPACES.map(([name, code]) => [name, String.fromCharCode(code)]));
for (const [first, names] of RUNS) {
  names.split(" ").forEach((name, i) => CHARACTERS.set(name, String.fromCharCode(first + i)));
}
const others = OTHERS.split(" ");
for (let i = 0; i < others.length; i += 2) CHARACTERS.set(others[i] ?? "", others[i + 1] ?? "");

/** The character of this name, without `&` and `;`; false where it is not known. */
export function decodeNamedCharacterReference(name: string): string | false {
  return CHARACTERS.get(name) ?? false;
}
