// The document that both the browser and the native program are asked about, and the policy. It is
// as short as it may be, because a software adapter decodes less than a token a second: four
// chunks of a prefill, and a budget that lets go of most of it.

import { sampleDocument } from "../../src/page/sample";

/** The facts with the shortest answers, from the first chunk of a prefill to the last. */
const FACTS = [
  { depth: 0.08, text: "The room number of Grace is 78217." },
  { depth: 0.4, text: "The access code of Walter is 40935." },
  { depth: 0.75, text: "The phone number of Alice is 26184." },
];

export const SAMPLE = {
  text: document(),
  policy: {
    preset: "longview",
    budget: 160,
    options: {} as Record<string, string>,
  },
};

function document(): string {
  const sentences = sampleDocument(800, 0, 1).split(/(?<=\.)\s+/);
  const n = sentences.length;
  FACTS.forEach(({ depth, text }, i) => sentences.splice(Math.round(depth * n) + i, 0, text));
  return sentences.join(" ");
}
