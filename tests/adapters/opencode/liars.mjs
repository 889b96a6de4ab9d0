// Services that drip and commands that leave others behind, against what DIST has compiled: each call ends in time.

import assert from "node:assert/strict"
import { execSync } from "node:child_process"
import * as net from "node:net"
import { setTimeout as sleep } from "node:timers/promises"

const { Client, times } = await import(`${process.env.DIST}/client.js`)
const { transportOf } = await import(`${process.env.DIST}/transport.js`)
times.answer = times.stream = times.recovery = 500

setTimeout(() => process.exit(3), 20_000).unref()

function drips(head, word) {
  const server = net.createServer((stream) => {
    stream.on("error", () => undefined)
    stream.once("data", () => {
      stream.write(head)
      const timer = setInterval(() => stream.write(word), 100)
      stream.on("close", () => clearInterval(timer))
    })
  })
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => {
      server.unref()
      resolve(new Client(transportOf({ url: `http://127.0.0.1:${server.address().port}` })))
    })
  })
}

const unknown = { effect: "unknown" }
const ok = "HTTP/1.1 200 OK\r\n"
const answer = await drips(`${ok}Content-Length: 100000\r\n\r\n`, " ")
await assert.rejects(answer.document("GET", "/x"), unknown)
for (const word of [" ", '{"event":"alive"}\n']) {
  const stream = await drips(`${ok}Content-Type: application/x-ndjson\r\n\r\n`, word)
  const all = async () => {
    for await (const event of stream.events("GET", "/x", { until: performance.now() + 900 })) assert.ok(event)
  }
  await assert.rejects(all(), unknown)
}

const mark = `97${process.pid}`
const command = new Client(transportOf({ url: `exec:sleep ${mark} & sleep ${mark}; true` }))
await assert.rejects(command.document("GET", "/x"), unknown)
command.close()
await sleep(2500)
const left = execSync("ps -A -o args=").toString().split("\n").filter((line) => line === `sleep ${mark}`)
if (left.length > 0) execSync(`pkill -xf 'sleep ${mark}'`)
assert.deepEqual(left, [])
process.exit(0)
