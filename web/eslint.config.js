import js from "@eslint/js";
import tseslint from "typescript-eslint";

/** Ways to make elements of a text. */
const MARKUP = [
  "innerHTML",
  "outerHTML",
  "insertAdjacentHTML",
  "setHTMLUnsafe",
  "srcdoc",
  "createContextualFragment",
  "parseFromString",
];

export default tseslint.config(
  { ignores: ["dist", "dist-server", "pkg", "tests/dist", "test-results"] },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: {
      parserOptions: {
        project: ["./tsconfig.json", "./tsconfig.worker.json"],
        tsconfigRootDir: import.meta.dirname,
      },
    },
    rules: {
      "max-lines": ["error", 800],
      "@typescript-eslint/no-explicit-any": "error",
      // What models and documents say is text, and never becomes elements.
      "no-restricted-syntax": [
        "error",
        {
          selector: [
            `MemberExpression[property.name=/^(${MARKUP.join("|")})$/]`,
            "MemberExpression[object.name='document'][property.name=/^write/]",
          ].join(", "),
          message: "Text becomes elements by textContent and append alone.",
        },
      ],
      // Numbers in texts are what most templates are about.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // node:test's functions return promises that the runner itself waits for.
      "@typescript-eslint/no-floating-promises": [
        "error",
        {
          allowForKnownSafeCalls: [
            { from: "package", name: ["test", "describe", "it"], package: "node:test" },
          ],
        },
      ],
    },
  },
  { files: ["eslint.config.js"], ...tseslint.configs.disableTypeChecked },
);
