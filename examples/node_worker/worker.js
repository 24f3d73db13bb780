// A worker of a queue: it does the work of each message in the transaction that acknowledges it.
//
//   node worker.js ADDRESSES QUEUE         ADDRESSES are gateways: host:port,host:port
//
// It survives the loss of nodes and gateways: it takes its messages from the next gateway, and sends
// a commit whose outcome it does not know again, with the same id. It ends with SIGTERM.
'use strict';

const { call, clients, detailOf, execute, sleep } = require('./postroom');

const [addresses, queue] = process.argv.slice(2);
if (!queue) {
  console.error('usage: node worker.js ADDRESSES QUEUE');
  process.exit(2);
}
const all = clients(addresses);
const working = new Set();
let stream = null;
let stopping = false;

// The work: it marks the message's id as done. It counts, so that a message that was done twice shows.
async function work(message) {
  const key = Buffer.concat([Buffer.from('done/'), message.id]);
  try {
    await execute(all, [
      { increment: { key } },
      { acknowledge: { queue, attempts: [message.attempt] } },
      { commit: {} },
    ]);
    console.log(`done ${message.id}`);
  } catch (error) {
    const detail = detailOf(error);
    // LeaseLost: another consumer has the message, and nothing of this transaction happened.
    if (detail !== null && detail.type === 'LeaseLost') {
      console.log(`lost ${message.id}`);
      return;
    }
    console.error(`failed ${message.id}: ${error.message}`);
    const reason = String(error.message).slice(0, 1000);
    await call(all[0], 'Reject', { queue, attempts: [message.attempt], reason })
      .catch(() => {}); // then the message comes again when its lease has passed
  }
}

// Takes messages from one gateway until the stream ends.
function receive(client) {
  return new Promise((ended) => {
    stream = client.Receive({ queue, credit: 20 });
    stream.on('data', (message) => {
      const task = work(message).finally(() => working.delete(task));
      working.add(task);
    });
    stream.on('error', ended);
    stream.on('end', () => ended(null));
  });
}

async function main() {
  for (let turn = 0; !stopping; turn += 1) {
    const error = await receive(all[turn % all.length]);
    if (stopping) break;
    const detail = error ? detailOf(error) : null;
    if (detail !== null && !detail.retryable) throw error;
    console.log(`again: ${error ? error.message : 'the stream has ended'}`);
    await sleep(detail ? Math.max(detail.retryAfterSeconds, 0.2) : 0.2);
  }
  await Promise.all(working);
  all.forEach((client) => client.close());
}

process.on('SIGTERM', async () => {
  stopping = true;
  if (stream !== null) stream.pause();
  await Promise.all(working); // a stream that ends gives back what is not settled
  if (stream !== null) stream.cancel();
});

main().then(() => process.exit(0), (error) => {
  console.error(error.message);
  process.exit(1);
});
