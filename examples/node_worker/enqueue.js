// Puts messages into a queue:  node enqueue.js ADDRESSES QUEUE COUNT [PREFIX]
'use strict';

const { batchExecute, clients } = require('./postroom');

const AT_A_TIME = 1000;
const [addresses, queue, count, prefix = 'job'] = process.argv.slice(2);
if (!(Number(count) > 0)) {
  console.error('usage: node enqueue.js ADDRESSES QUEUE COUNT [PREFIX]');
  process.exit(2);
}

// Each message is a transaction of its own. An id that is there already stays as it is.
function enqueue(number) {
  const id = Buffer.from(`${prefix}-${number}`);
  return [{ enqueue: { queue, id, payload: Buffer.from(`work ${number}`) } }, { commit: {} }];
}

async function main() {
  const all = clients(addresses);
  for (let first = 0; first < Number(count); first += AT_A_TIME) {
    const length = Math.min(AT_A_TIME, Number(count) - first);
    const transactions = Array.from({ length }, (_, place) => enqueue(first + place));
    const failed = (await batchExecute(all, transactions)).find((response) => response.error);
    if (failed) throw new Error(failed.error.message);
  }
  console.log(`enqueued ${count}`);
  all.forEach((client) => client.close());
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
