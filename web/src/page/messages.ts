// What each failure means to a visitor, and what to do about it.

import type { Code } from "../protocol";

export interface Message {
  title: string;
  /** What to do, as a sentence. */
  advice: string;
  /** Nothing works until it is solved. */
  blocking: boolean;
}

export const MESSAGES: Record<Code, Message> = {
  "no-webgpu": {
    title: "This browser has no WebGPU",
    advice:
      "Use Chrome or Edge 113 or newer, Safari 26 or newer, or Firefox 141 or newer on Windows " +
      "(145 on macOS). WebGPU also needs a secure address: https, or localhost. The same demo " +
      "runs without a browser: longview demo.",
    blocking: true,
  },
  "no-adapter": {
    title: "No graphics adapter answers",
    advice:
      "Turn on hardware acceleration in the browser's settings and update the graphics driver. " +
      "On Linux, Chrome may need chrome://flags/#enable-unsafe-webgpu and #enable-vulkan. Or try " +
      "the browser's software adapter, which is slow.",
    blocking: true,
  },
  "device-lost": {
    title: "The graphics device was lost",
    advice:
      "Try again: the device is opened anew. If it happens again, choose a shorter context or a " +
      "smaller model, and close other pages that use the GPU.",
    blocking: false,
  },
  "out-of-memory": {
    title: "Out of memory",
    advice:
      "Choose a shorter context or a smaller model under Model, and load it again. Closing other " +
      "tabs helps too. If you limited what the device holds, allow more or lower the budget.",
    blocking: false,
  },
  "context-too-long": {
    title: "The text is longer than the context",
    advice: "Choose a longer context under Model, or shorten the document.",
    blocking: false,
  },
  "bad-model": {
    title: "This model cannot be used",
    advice:
      "Use a Hugging Face folder in safetensors, or a GGUF file, of a supported model: Llama, " +
      "Mistral, Qwen2, Qwen3, Phi-3, GLM-4, InternLM2 or Gemma 3.",
    blocking: false,
  },
  "bad-file": {
    title: "This file cannot be read",
    advice: "",
    blocking: false,
  },
  gone: {
    title: "The document is not on the server any more",
    advice: "",
    blocking: false,
  },
  "bad-session": {
    title: "The saved document is damaged",
    advice: "Nothing of it was used. Delete it, or read its text again.",
    blocking: false,
  },
  "wrong-model": {
    title: "The saved document belongs to another model",
    advice: "Load that model, or read the text again with this one.",
    blocking: false,
  },
  cancelled: { title: "Stopped", advice: "What was done is kept.", blocking: false },
  "bad-input": { title: "This does not work", advice: "", blocking: false },
  other: {
    title: "Something failed",
    advice: "Reload the page. Saved documents stay.",
    blocking: false,
  },
  network: {
    title: "The download failed",
    advice: "Check the address and the connection, then load the model again.",
    blocking: false,
  },
  "corrupt-cache": {
    title: "The stored model is damaged",
    advice: "It was not used. Delete it and download it again.",
    blocking: false,
  },
  quota: { title: "No room in the browser's storage", advice: "", blocking: false },
  "no-storage": { title: "No storage in this window", advice: "", blocking: false },
  unauthorized: {
    title: "This server wants its key",
    advice:
      "Type a key that the server was started with (--api-key or --api-key-file): of NAME:KEY " +
      "what stands behind the colon.",
    blocking: true,
  },
  unreachable: {
    title: "The server does not answer",
    advice: "See whether it still runs, then try again. What it has read stays there.",
    blocking: false,
  },
  busy: {
    title: "The server is busy",
    advice: "Try again in a moment.",
    blocking: false,
  },
  "busy-elsewhere": {
    title: "Another tab is using the stored files",
    advice: "Close the other tab of this page, then try again.",
    blocking: false,
  },
};

export const SOFTWARE =
  "The browser computes on the CPU instead of a graphics card (a software adapter). Everything " +
  "works, but slowly: choose short documents, a few thousand tokens. For speed, turn on hardware " +
  "acceleration in the browser's settings.";
