// The embedded model's files, written into the page by the build.
declare module "virtual:embedded-model" {
  export const files: { name: string; size: number; sha256: string }[];
}
