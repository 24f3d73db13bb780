// Puts messages into a queue:  node enqueue.js ADDRESSES QUEUE COUNT [PREFIX]
'use strict';

const { clients, execute } = require('./postroom');

const [addresses, queue, count, prefix = 'job'] = process.argv.slice(2);

async function main() {
  const all = clients(addresses);
  const operations = [];
  for (let number = 0; number < Number(count); number += 1) {
    const id = Buffer.from(`${prefix}-${number}`);
    operations.push({ enqueue: { queue, id, payload: Buffer.from(`work ${number}`) } });
  }
  operations.push({ commit: {} });
  const answer = await execute(all, operations);
  console.log(`enqueued ${count} at ${answer.results.at(-1).commit.timestamp}`);
  all.forEach((client) => client.close());
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
