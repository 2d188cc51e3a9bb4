// What every program in this folder speaks: one JSON command a line on standard input, one JSON answer a line on
// standard output. `serve URL FD` is a worker of latency probes instead: it writes each handler's start to FD.

import { writeSync } from "node:fs";
import { createInterface } from "node:readline";

const BULK = 1_000; // jobs in one call of a bulk enqueue

export async function main(connect) {
  const [verb, url, descriptor] = process.argv.slice(2);
  const queue = await connect(url);
  if (verb === "serve") {
    await queue.work({ probe: (number) => reportStart(Number(descriptor), number) });
    return;
  }
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    const answer = await verbs[command.verb](queue, command);
    process.stdout.write(`${JSON.stringify(answer ?? {})}\n`);
  }
  await queue.close();
  process.exit(0);
}

const verbs = {
  install: (queue) => queue.install(),
  enqueue: (queue, { count, callers }) => timed(() => byCallers(() => queue.put(), count, callers)),
  enqueue_bulk: (queue, { count }) => timed(() => inBatches((size) => queue.putMany(size), count)),
  probe: (queue, { number }) => queue.putProbe(number),
  async drain(queue, { count }) {
    let ran = 0;
    let finish;
    const finished = new Promise((resolve) => (finish = resolve));
    const begun = performance.now();
    const stop = await queue.work({
      noop: () => {
        if (++ran === count) finish();
      },
    });
    await finished;
    const seconds = (performance.now() - begun) / 1_000;
    await stop(); // its worker settles what it has run; none may have run twice
    return { seconds, ran };
  },
};

async function timed(work) {
  const begun = performance.now();
  await work();
  return { seconds: (performance.now() - begun) / 1_000 };
}

async function byCallers(put, count, callers) {
  let left = count;
  const caller = async () => {
    while (left-- > 0) await put();
  };
  await Promise.all(Array.from({ length: callers }, caller));
}

async function inBatches(putMany, count) {
  for (let left = count; left > 0; left -= BULK) await putMany(Math.min(BULK, left));
}

function reportStart(descriptor, number) {
  const report = Buffer.alloc(16);
  report.writeBigInt64LE(BigInt(number), 0);
  report.writeBigInt64LE(BigInt(Math.round((performance.timeOrigin + performance.now()) * 1_000)) * 1_000n, 8);
  writeSync(descriptor, report);
}
