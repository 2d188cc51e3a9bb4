// What every program in this folder speaks: one JSON command a line on standard input, one JSON answer a line on
// standard output. `serve URL FD` is a worker of latency probes instead: it writes each handler's start to FD. `share
// URL` is one of several workers that begin together: it says that it is ready, and how many jobs it has run.

import { writeSync } from "node:fs";
import { createInterface } from "node:readline";

const BULK = 1_000; // jobs in one call of a bulk enqueue

export async function main(connect) {
  const [verb, url, descriptor] = process.argv.slice(2);
  const queue = await connect(url);
  if (verb === "serve") {
    await queue.work({ ...handlers(() => {}), probe: (number) => reportStart(Number(descriptor), number) });
    return;
  }
  if (verb === "share") return await share(queue);
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
  enqueue_work: (queue, { count, milliseconds }) => timed(() => inBatches((size) => queue.putWork(size, milliseconds), count)),
  probe: (queue, { number }) => queue.putProbe(number),
  async drain(queue, { count }) {
    let ran = 0;
    let finish;
    const finished = new Promise((resolve) => (finish = resolve));
    const begun = performance.now();
    const stop = await queue.work(handlers(() => ++ran === count && finish()));
    await finished;
    const seconds = (performance.now() - begun) / 1_000;
    await stop(); // its worker settles what it has run; none may have run twice
    return { seconds, ran };
  },
};

// How many jobs at once, where the measurement gives all contestants the same number; else `otherwise`.
export const slots = (otherwise) => Number(process.env.BENCH_SLOTS ?? otherwise);

const handlers = (done) => ({
  noop: () => void done(),
  async work(milliseconds) {
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
    done();
  },
  probe: () => {},
});

async function share(queue) {
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  process.stdout.write("ready\n");
  await lines.next();
  let ran = 0;
  let told = -1;
  const tell = () => ran !== told && process.stdout.write(`${(told = ran)}\n`);
  const stop = await queue.work(handlers(() => ran++));
  const telling = setInterval(tell, 10);
  await lines.next(); // the input ends
  await stop();
  clearInterval(telling);
  tell();
  process.exit(0);
}

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
