// pg-boss, woken by LISTEN/NOTIFY, with four local workers that fetch up to 2,000 jobs each.

import { PgBoss } from "pg-boss";

import { main, slots } from "./protocol.mjs";

await main(async (url) => {
  const boss = new PgBoss({ connectionString: url, max: 10, useListenNotify: true, supervise: false, schedule: false });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  for (const name of ["noop", "work", "probe"]) await boss.createQueue(name, { notify: true });
  return {
    install: () => {},
    put: () => boss.send("noop", {}),
    putMany: (size) => boss.insert("noop", Array.from({ length: size }, () => ({ data: {} }))),
    putWork: (size, milliseconds) => boss.insert("work", Array.from({ length: size }, () => ({ data: { milliseconds } }))),
    putProbe: async (number) => void (await boss.send("probe", { number })),
    close: () => boss.stop({ graceful: false }),
    async work({ noop, work, probe }) {
      const many = { batchSize: slots(8_000) / 4, localConcurrency: 4, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
      await boss.work("noop", many, async (jobs) => jobs.forEach(noop));
      await boss.work("work", many, (jobs) => Promise.all(jobs.map((job) => work(job.data.milliseconds))));
      await boss.work("probe", { batchSize: 1, pollingIntervalSeconds: 0.5 }, async ([job]) => probe(job.data.number));
      return () => boss.stop({ graceful: true, timeout: 30_000 });
    },
  };
});
