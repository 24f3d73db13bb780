// A client of postroom.v1: clients for several gateways, errors with their details, retries.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');
const protobuf = require('protobufjs');

// The definition comes with Postroom: copy postroom/gateway/postroom.proto beside this file, or
// name it in POSTROOM_PROTO.
const PROTO = process.env.POSTROOM_PROTO ||
  [path.join(__dirname, 'postroom.proto'),
    path.join(__dirname, '..', '..', 'postroom', 'gateway', 'postroom.proto')].find(fs.existsSync);
const CALL_SECONDS = 10;
const TRANSACTION_TRIES = 20;

const definition = protoLoader.loadSync(PROTO, { longs: String, enums: String, oneofs: true });
const service = grpc.loadPackageDefinition(definition).postroom.v1;
const root = protobuf.loadSync(PROTO);
const RpcStatus = root.lookupType('postroom.v1.RpcStatus');
const ErrorDetail = root.lookupType('postroom.v1.ErrorDetail');

// Returns a client of each gateway: "host:port,host:port".
function clients(addresses) {
  return addresses.split(',').map((address) => new service.Postroom(
    address, grpc.credentials.createInsecure(),
    { 'grpc.max_receive_message_length': 32 << 20, 'grpc.keepalive_time_ms': 10000,
      'grpc.initial_reconnect_backoff_ms': 100, 'grpc.max_reconnect_backoff_ms': 1000 }));
}

// Returns the ErrorDetail of an error; null: it did not come from the gateway, so the call may
// have taken effect.
function detailOf(error) {
  const packed = error.metadata ? error.metadata.get('grpc-status-details-bin') : [];
  if (packed.length === 0) return null;
  return ErrorDetail.decode(RpcStatus.decode(packed[0]).details[0].value);
}

// Makes a single call; rejects with the error of gRPC.
function call(client, name, request) {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 1000 * CALL_SECONDS;
    client[name](request, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

const sleep = (seconds) => new Promise((wake) => setTimeout(wake, 1000 * seconds));

// Runs a transaction of one request, whose last operation is commit. It is sent again, through any
// gateway and with the same id, until its outcome is known: so it takes effect once.
async function execute(all, operations) {
  let begin = null;
  for (let attempt = 0; ; attempt += 1) {
    const client = all[attempt % all.length];
    try {
      if (begin === null) {
        begin = { transactionId: (await call(client, 'NewTransactionId', {})).transactionId };
      }
      return await call(client, 'Execute', { begin, operations });
    } catch (error) {
      const detail = detailOf(error);
      const mayHaveHappened = detail === null || !detail.nothingHappened;
      if (!(mayHaveHappened || detail.retryable) || attempt >= TRANSACTION_TRIES) throw error;
      await sleep(Math.max(detail ? detail.retryAfterSeconds : 0, Math.min(0.1 * 2 ** attempt, 2)));
    }
  }
}

// Tells whether a transaction need not be sent again.
function isFinal(response) {
  if (response === undefined || !response.error) return response !== undefined;
  const detail = ErrorDetail.decode(response.error.details[0].value);
  return detail.nothingHappened && !detail.retryable;
}

// Runs many transactions, each by itself, and returns their responses: one with an error has not
// committed. Those without an outcome are sent again, through any gateway and with the same ids.
async function batchExecute(all, transactions) {
  const { transactionId, otherIds = [] } = await call( // proto3 leaves out an empty list
    all[0], 'NewTransactionId', { count: transactions.length });
  const ids = [transactionId, ...otherIds];
  let left = transactions.map((operations, number) => (
    { number, begin: { transactionId: ids[number] }, operations }));
  const responses = [];
  for (let attempt = 0; ; attempt += 1) {
    const error = await batch(all[attempt % all.length], left, responses);
    left = left.filter((request) => !isFinal(responses[request.number]));
    if (left.length === 0) return responses;
    if (attempt >= TRANSACTION_TRIES) throw error || new Error('there is no outcome yet');
    await sleep(Math.min(0.1 * 2 ** attempt, 2));
  }
}

// Sends transactions on one stream, and keeps their responses. Returns how it has failed, or null.
function batch(client, transactions, responses) {
  return new Promise((ended) => {
    const stream = client.BatchExecute({ deadline: Date.now() + 1000 * CALL_SECONDS });
    stream.on('data', (message) => message.transactions.forEach((response) => {
      responses[response.number || 0] = response; // proto3 leaves out a zero
    }));
    stream.on('error', ended);
    stream.on('end', () => ended(null));
    stream.write({ transactions });
    stream.end();
  });
}

module.exports = { batchExecute, call, clients, detailOf, execute, sleep };
