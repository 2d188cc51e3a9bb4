// graphile-worker, with its documented preset for throughput or tuned further: `node graphile.mjs VERB URL [FD] [--tuned]`.

import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";

import { main, slots } from "./protocol.mjs";

const logger = new Logger(() => () => {});
const settings = {
  preset: { concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
  tuned: { concurrentJobs: 1_000, maxPoolSize: 40, localQueue: { size: 2_000 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
}[process.env.BENCH_VARIANT ?? "preset"];
settings.concurrentJobs = slots(settings.concurrentJobs);

await main(async (url) => {
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  return {
    install: () => runMigrations({ connectionString: url, logger }),
    put: () => utils.addJob("noop", {}),
    putMany: (size) => utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: {} }))),
    putWork: (size, milliseconds) => utils.addJobs(Array.from({ length: size }, () => ({ identifier: "work", payload: { milliseconds } }))),
    putProbe: async (number) => void (await utils.addJob("probe", { number })),
    close: () => utils.release(),
    async work({ noop, work, probe }) {
      const runner = await run({
        logger,
        noHandleSignals: false,
        taskList: { noop, work: ({ milliseconds }) => work(milliseconds), probe: ({ number }) => probe(number) },
        preset: { worker: { connectionString: url, ...settings } },
      });
      return () => runner.stop();
    },
  };
});
