// The document that both the browser and the native program are asked about: the page's first
// sample of 1,000 tokens under the page's own policy.

export const SAMPLE = {
  tokens: 1000,
  facts: 6,
  seed: 1,
  policy: {
    preset: "clusterkv",
    budget: 512,
    options: { "cluster-segment": "0", "cluster-tokens": "8", iterations: "3" },
  },
};
