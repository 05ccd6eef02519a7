// Makes a container in Azurite, which has none at its start: node container.mjs ADDRESS NAME
import { createHmac } from "node:crypto";

// What Azurite's documentation says of its one account: no secret.
const ACCOUNT = "devstoreaccount1";
const KEY =
  "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

const [address, name] = process.argv.slice(2);
const date = new Date().toUTCString();
const version = "2021-08-06";
// Method and eleven headers that are not there, then ours, then what is asked.
const signed = [
  "PUT",
  ...Array(11).fill(""),
  `x-ms-date:${date}`,
  `x-ms-version:${version}`,
  `/${ACCOUNT}/${ACCOUNT}/${name}`,
  "restype:container",
].join("\n");
const signature = createHmac("sha256", Buffer.from(KEY, "base64")).update(signed).digest("base64");
const answer = await fetch(`${address}/${ACCOUNT}/${name}?restype=container`, {
  method: "PUT",
  headers: {
    "x-ms-date": date,
    "x-ms-version": version,
    Authorization: `SharedKey ${ACCOUNT}:${signature}`,
  },
});
if (answer.status !== 201) {
  console.error(`${answer.status}: ${await answer.text()}`);
  process.exit(1);
}
