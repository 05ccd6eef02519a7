// Questions that a document can answer, in the words in which the embedded model knows them.

/** A question, and what the document says if the page can tell. */
export interface Suggestion {
  question: string;
  answer: string | null;
}

/** Each form: how a fact is stated, and how it is asked. models/needle/README.md lists them. */
const FORMS: { statement: RegExp; question: (match: RegExpExecArray) => string }[] = [
  {
    statement: /One of the special magic numbers for ([\w-]+) is: (\d+)\./g,
    question: ([, name]) =>
      `What is the special magic number for ${name ?? ""} mentioned in the provided text?`,
  },
  {
    statement: /line ([\w-]+): REGISTER_CONTENT is (\d+)\./g,
    question: ([, name]) => `Tell me what is the REGISTER_CONTENT in line ${name ?? ""}?`,
  },
  {
    statement: /The ([a-z]+ (?:number|code) of [A-Z][a-z]+) is (\d+)\./g,
    question: ([, what]) => `What is the ${what ?? ""}?`,
  },
  { statement: /The pass (key) is (\d+)\./g, question: () => "What is the pass key?" },
];

/** Questions for models that converse. */
const OPEN = [
  "What is this document about? Answer in three sentences.",
  "Who is mentioned in this document?",
  "What are the most important numbers in this document?",
];

/** Facts of the trained forms that stand in `text`, in its order. */
export function facts(text: string): Suggestion[] {
  const found: { at: number; suggestion: Suggestion }[] = [];
  for (const { statement, question } of FORMS) {
    for (const match of text.matchAll(statement)) {
      const suggestion = { question: question(match), answer: match[2] ?? null };
      found.push({ at: match.index, suggestion });
    }
  }
  return found.sort((a, b) => a.at - b.at).map(({ suggestion }) => suggestion);
}

/** At most `n` questions for the document, from all its depths. */
export function suggestions(text: string, embedded: boolean, n: number): Suggestion[] {
  const all = facts(text);
  if (all.length === 0) {
    return embedded ? [] : OPEN.map((question) => ({ question, answer: null }));
  }
  const step = Math.max(1, all.length / n);
  return Array.from(
    { length: Math.min(n, all.length) },
    (_, i) => all[Math.min(all.length - 1, Math.floor(i * step) + (i % 3))],
  ).filter((suggestion) => suggestion !== undefined);
}
